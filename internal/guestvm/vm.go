package guestvm

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/sandvol/sandvol/internal/guestvm/wire"
)

// Limits of a guest under software emulation on a busy machine.
const (
	bootLimit    = 3 * time.Minute
	commandLimit = 2 * time.Minute
)

// Kind is how a drive reaches the guest.
type Kind string

// The kinds.
const (
	File      Kind = "file"
	NBD       Kind = "nbd"
	VhostUser Kind = "vhost-user"
)

// Drive is one block device of the guest.
type Drive struct {
	Kind     Kind
	Path     string // of the exposure
	Serial   string // by which the guest finds it; a vhost-user drive says it by itself
	ReadOnly bool
}

// args are QEMU's for the drive, as an operator would write them.
func (d Drive) args(i int) []string {
	node := fmt.Sprintf("drive%d", i)
	readOnly := map[bool]string{true: ",read-only=on", false: ""}[d.ReadOnly]
	virtio := []string{"-device", "virtio-blk-pci,drive=" + node + ",serial=" + d.Serial}
	switch d.Kind {
	case NBD:
		return append([]string{"-blockdev", "driver=nbd,node-name=" + node + ",server.type=unix,server.path=" + d.Path +
			",reconnect-delay=120,discard=unmap" + readOnly}, virtio...)
	case VhostUser:
		return []string{"-chardev", "socket,id=" + node + ",path=" + d.Path + ",reconnect=1",
			"-device", "vhost-user-blk-pci,num-queues=2,chardev=" + node}
	}
	return append([]string{"-blockdev", "driver=file,node-name=" + node + ",filename=" + d.Path +
		",cache.direct=on,discard=unmap" + readOnly}, virtio...)
}

// VM is a running guest.
type VM struct {
	cmd     *exec.Cmd
	line    net.Conn
	console string
	ended   chan struct{}

	turn sync.Mutex // one command at a time
	next int

	mu      sync.Mutex
	answers map[int]chan wire.Answer
	acked   map[string]int64
	failed  map[string]string
}

// Start boots a guest with drives and returns when it takes commands. dir is for its sockets and its console's log.
func (k *Kernel) Start(ctx context.Context, dir string, drives ...Drive) (*VM, error) {
	control := filepath.Join(dir, "control")
	if err := os.RemoveAll(control); err != nil {
		return nil, err
	}
	vm := &VM{console: filepath.Join(dir, "console"), ended: make(chan struct{}),
		answers: map[int]chan wire.Answer{}, acked: map[string]int64{}, failed: map[string]string{}}
	args := []string{"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-machine", "pc,memory-backend=mem", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "1", "-m", "256M",
		"-object", "memory-backend-memfd,id=mem,size=256M,share=on",
		"-kernel", k.image, "-initrd", k.initramfs, "-append", "console=ttyS0 panic=-1 quiet",
		"-chardev", "file,id=console,path=" + vm.console, "-serial", "chardev:console",
		"-chardev", "socket,id=control,path=" + control + ",server=on,wait=off", "-serial", "chardev:control"}
	for i, d := range drives {
		args = append(args, d.args(i)...)
	}
	vm.cmd = exec.Command("qemu-system-x86_64", args...)
	vm.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var said lockedBuffer
	vm.cmd.Stdout, vm.cmd.Stderr = &said, &said
	if err := vm.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = vm.cmd.Wait() // how it ended is of no interest to those who wait
		close(vm.ended)
	}()
	if err := vm.connect(ctx, control); err != nil {
		vm.Kill()
		log, _ := os.ReadFile(vm.console)
		return nil, fmt.Errorf("boot: %w\n%s\n%s", err, said.String(), log)
	}
	return vm, nil
}

// connect waits until the guest says that it is up.
func (vm *VM) connect(ctx context.Context, control string) (err error) {
	ctx, cancel := context.WithTimeout(ctx, bootLimit)
	defer cancel()
	up := make(chan wire.Answer, 1)
	vm.answers[0] = up
	for {
		if vm.line, err = net.Dial("unix", control); err == nil {
			break
		}
		select {
		case <-vm.ended:
			return errors.New("QEMU ended")
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
	go vm.listen()
	select {
	case <-up:
		return nil
	case <-vm.ended:
		return errors.New("QEMU ended")
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (vm *VM) listen() {
	lines := bufio.NewScanner(vm.line)
	for lines.Scan() {
		var a wire.Answer
		if json.Unmarshal(lines.Bytes(), &a) != nil {
			continue // the rest of a line that a kill has cut
		}
		vm.mu.Lock()
		switch {
		case a.Acked > 0:
			vm.acked[a.Path] = a.Acked
		case a.Path != "":
			vm.failed[a.Path] = a.Error
		case vm.answers[a.ID] != nil:
			vm.answers[a.ID] <- a
			delete(vm.answers, a.ID)
		}
		vm.mu.Unlock()
	}
}

// GuestError is what a command came to in the guest.
type GuestError struct {
	Command wire.Command
	Message string
	Errno   syscall.Errno
}

func (e *GuestError) Error() string { return fmt.Sprintf("guest: %+v: %s", e.Command, e.Message) }

// Unwrap returns the errno.
func (e *GuestError) Unwrap() error { return e.Errno }

// Do has the guest carry out a command.
func (vm *VM) Do(c wire.Command) (count int64, err error) {
	vm.turn.Lock()
	defer vm.turn.Unlock()
	vm.next++
	c.ID = vm.next
	answer := make(chan wire.Answer, 1)
	vm.mu.Lock()
	vm.answers[c.ID] = answer
	vm.mu.Unlock()
	b, err := json.Marshal(c)
	if err != nil {
		return 0, err
	}
	if _, err := vm.line.Write(append(b, '\n')); err != nil {
		return 0, err
	}
	select {
	case a := <-answer:
		if a.Error != "" {
			return 0, &GuestError{c, a.Error, syscall.Errno(a.Errno)}
		}
		return a.Count, nil
	case <-vm.ended:
		return 0, fmt.Errorf("%+v: the guest ended", c)
	case <-time.After(commandLimit):
		return 0, fmt.Errorf("%+v: no answer in %v", c, commandLimit)
	}
}

// Acked returns the last record of a file that is on its drive, and why no more follow.
func (vm *VM) Acked(path string) (n int64, failure string) {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	return vm.acked[path], vm.failed[path]
}

// Kill ends the guest as a power cut does.
func (vm *VM) Kill() {
	_ = vm.cmd.Process.Kill()
	<-vm.ended
	if vm.line != nil {
		_ = vm.line.Close()
	}
}

// lockedBuffer is written to by two copiers.
type lockedBuffer struct {
	mu sync.Mutex
	b  []byte
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.b = append(l.b, p...)
	return len(p), nil
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.b)
}
