package kubetest

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"

	"k8s.io/client-go/rest"
)

// process is a server that dies with this process.
type process struct {
	name   string
	cmd    *exec.Cmd
	done   chan struct{}
	output tail
}

// spawn starts a program.
func spawn(program string, args ...string) (*process, error) {
	p := &process{name: filepath.Base(program), cmd: exec.Command(program, args...), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = &p.output, &p.output
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go func() {
		// The kernel sends the signal when the thread that started the program ends, so it must live as long.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(p.done)
		err := p.cmd.Start()
		started <- err
		if err == nil {
			_ = p.cmd.Wait() // it is stopped with a signal
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("kubetest: %w", err)
	}
	return p, nil
}

// stop ends the program: gently, then not.
func (p *process) stop() {
	if p == nil {
		return
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	select {
	case <-p.done:
	case <-time.After(20 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.done
	}
}

// wait asks a path until it answers 200.
func (p *process) wait(ctx context.Context, config *rest.Config, path string) error {
	ctx, cancel := context.WithTimeout(ctx, readyTime)
	defer cancel()
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	for {
		if answers(ctx, client, config.Host+path) {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("kubetest: %s ended: %s", p.name, p.output.String())
		case <-ctx.Done():
			return fmt.Errorf("kubetest: %s is not ready: %w: %s", p.name, ctx.Err(), p.output.String())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func answers(ctx context.Context, client *http.Client, url string) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return false
	}
	resp, err := client.Do(req)
	if err != nil {
		return false
	}
	_ = resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// tail keeps the end of what a program says.
type tail struct {
	mu sync.Mutex
	b  bytes.Buffer
}

const maxTail = 16 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b.Write(p)
	if n := t.b.Len() - maxTail; n > 0 {
		t.b.Next(n)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.b.String()
}
