package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/google/uuid"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/sandvol/sandvol/e2bhttp"
	"github.com/sandvol/sandvol/e2bhttp/wire"
	"github.com/sandvol/sandvol/k8sadapter"
	"github.com/sandvol/sandvol/volume"
)

// maxBody bounds a request's body.
const maxBody = 1 << 20

// createSandbox serves POST /sandboxes. A real host waits for the claim and answers with its sandbox.
func (h *host) createSandbox(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		h.fail(w, fmt.Errorf("%w: body: %w", volume.ErrInvalid, err))
		return
	}
	var request struct {
		TemplateID string `json:"templateID"`
	}
	if err := json.Unmarshal(body, &request); err != nil || request.TemplateID == "" {
		h.fail(w, fmt.Errorf("%w: templateID: is missing", volume.ErrInvalid))
		return
	}
	mounts, err := mountsOf(body)
	if err != nil {
		h.fail(w, err)
		return
	}
	claim, resolution, err := h.claim(r.Context(), e2bhttp.TenantFrom(r.Context()), request.TemplateID, mounts)
	if err != nil {
		h.fail(w, err)
		return
	}
	shown := []map[string]any{}
	for _, m := range resolution.Mounts {
		shown = append(shown, map[string]any{"name": m.PVName, "path": m.MountPath, "readOnly": m.ReadOnly})
	}
	answer(w, http.StatusCreated, map[string]any{"sandboxID": claim, "templateID": request.TemplateID, "volumeMounts": shown})
}

// claim resolves the mounts, stores them in a claim, and confirms them. Whatever fails, nothing stays behind.
func (h *host) claim(ctx context.Context, namespace, template string, mounts []k8sadapter.Mount) (
	name string, r k8sadapter.Resolution, err error) {
	name = "sbx-" + uuid.NewString()[:13]
	r, err = h.adapter.Resolve(ctx, namespace, k8sadapter.Request{Mounts: mounts,
		Holder: k8sadapter.Holder{Kind: k8sadapter.Claim, Namespace: namespace, Name: name}})
	if err != nil {
		return "", r, err
	}
	claim := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "agents.kruise.io/v1alpha1", "kind": "SandboxClaim",
		"metadata": map[string]any{"name": name, "namespace": namespace},
		"spec":     map[string]any{"templateName": template},
	}}
	if err = r.Apply(claim); err == nil {
		_, err = h.claims.Namespace(namespace).Create(ctx, claim, metav1.CreateOptions{})
	}
	if err == nil {
		err = h.adapter.Confirm(ctx, r.Token)
	}
	if err != nil {
		return "", r, errors.Join(err, h.undo(ctx, namespace, name, r.Token))
	}
	return name, r, nil
}

// undo removes a claim whose mounts were not confirmed: first the claim, then what kept others out. It goes on when the
// client has gone.
func (h *host) undo(ctx context.Context, namespace, name string, t k8sadapter.Token) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	err := h.claims.Namespace(namespace).Delete(ctx, name, metav1.DeleteOptions{})
	if err != nil {
		h.log.WarnContext(ctx, "a claim may stay behind", "claim", name, "error", err) // or was never made
	}
	return h.adapter.Release(ctx, t)
}

// mountsOf reads the mounts of a request in every form: E2B's and its kin's by package e2bhttp, OpenKruise's metadata by
// package k8sadapter, which knows attributes too. What is wrong with single entries goes on to Resolve, which says it with
// all else that is wrong.
func mountsOf(body []byte) ([]k8sadapter.Mount, error) {
	entries, err := e2bhttp.MountRules{SubPaths: true}.Decode(body)
	mounts := make([]k8sadapter.Mount, 0, len(entries))
	for _, e := range entries {
		m := k8sadapter.Mount{Where: e.Where, Path: e.Path, SubPath: e.SubPath, ReadOnly: e.ReadOnly, Mode: e.Mode, Fault: e.Fault()}
		for _, ref := range e.Refs {
			m.Refs = append(m.Refs, k8sadapter.Ref(ref))
		}
		mounts = append(mounts, m)
	}
	var request struct {
		Metadata map[string]string `json:"metadata"`
	}
	if json.Unmarshal(body, &request) != nil {
		return nil, errors.Join(err, fmt.Errorf("%w: metadata: must be an object of strings", volume.ErrInvalid))
	}
	more, metadataErr := k8sadapter.ParseMetadata(request.Metadata)
	return k8sadapter.Merge(mounts, more), errors.Join(err, metadataErr)
}

// fail answers for an error as the volume routes do, and says which volume is missing. What happened inside is for the log.
func (h *host) fail(w http.ResponseWriter, err error) {
	body := e2bhttp.ErrorBody(err)
	if body.Code == http.StatusNotFound {
		body.Message, body.ErrorCode = err.Error(), wire.VolumeNotFound
	}
	h.log.Info("sandbox refused", "status", body.Code, "error", err)
	answer(w, body.Code, body)
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // the client may have gone
}
