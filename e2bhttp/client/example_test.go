package client_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/sandvol/sandvol/e2bhttp/client"
	"github.com/sandvol/sandvol/e2bhttp/wire"
)

func Example() {
	// A server that says what a real one would.
	srv := httptest.NewServer(&script{answers: []func(http.ResponseWriter){
		says(201, `{"volumeID":"0197","name":"workspace","status":"ready","token":""}`),
		says(404, `{"code":404,"message":"volume \"other\" not found","error_code":"volume_not_found"}`),
	}})
	defer srv.Close()

	c, err := client.New(client.Config{URL: srv.URL, APIKey: "e2b_0123"})
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	v, err := c.Create(ctx, wire.NewVolume{Name: "workspace"})
	fmt.Println(v.Name, err)
	_, err = c.Get(ctx, "other")
	fmt.Println(errors.Is(err, client.ErrNotFound), err)
	// Output:
	// workspace <nil>
	// true GET /volumes/other: HTTP 404: volume "other" not found
}
