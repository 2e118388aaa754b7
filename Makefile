# Short names for what .ci does; nothing here that is not there.
.PHONY: test ci demo bench
test:
	bash .ci/test
ci:
	bash .ci/run
demo:
	go run ./examples/quickstart
bench:
	go test -run '^$$' -bench . -benchmem ./...
