package fleetapi_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/api/fleet/v1/fleetv1connect"
	"github.com/ironherd/ironherd/internal/token"
)

// TestHeadersDecideBeforeTheBodyIsRead: who may not do something is told so without this server
// waiting for, or keeping, what else is sent.
func TestHeadersDecideBeforeTheBodyIsRead(t *testing.T) {
	t.Parallel()
	o := newFixture(t)
	const reflection = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
	for _, c := range []struct {
		name, procedure, host, token, kind string
		want                               string
	}{
		{"a stranger reads", fleetv1connect.FleetServiceListMachinesProcedure, "evil.example", "", "proto", "unauthenticated"},
		{"a stranger writes", fleetv1connect.FleetServiceInstallMachineProcedure, "evil.example", "", "proto", "unauthenticated"},
		{"a wrong token", fleetv1connect.FleetServiceInstallMachineProcedure, "localhost", "guess", "proto", "unauthenticated"},
		{"who may read writes", fleetv1connect.FleetServiceInstallMachineProcedure, "localhost", o.tokens[token.Viewer], "proto", "permission_denied"},
		{"who may read retries", fleetv1connect.FleetServiceRetryMachineProcedure, "localhost", o.tokens[token.Viewer], "json", "permission_denied"},
		{"a stranger reflects", reflection, "evil.example", "", "grpc+proto", "Grpc-Status: 16"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", strings.TrimPrefix(o.url, "http://"))
			o.must(err)
			defer conn.Close()
			head := fmt.Sprintf("POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/%s\r\nContent-Length: 200000\r\n", c.procedure, c.host, c.kind)
			if c.token != "" {
				head += "Authorization: Bearer " + c.token + "\r\n"
			}
			_, err = io.WriteString(conn, head+"\r\n") // and nothing more
			o.must(err)
			o.must(conn.SetReadDeadline(time.Now().Add(20 * time.Second)))
			answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatalf("the server waits for the body: %v", err)
			}
			var text strings.Builder
			_ = answer.Write(&text)
			answer.Body.Close()
			if !strings.Contains(text.String(), c.want) {
				t.Errorf("answered %q, want %q in it", text.String(), c.want)
			}
		})
	}
}

// TestQuestionsAreSmall: what only reads needs no large request, and gets none read.
func TestQuestionsAreSmall(t *testing.T) {
	t.Parallel()
	o := newFixture(t)
	_, err := o.client(token.Viewer).ListMachines(t.Context(), &fleetv1.ListMachinesRequest{PageToken: strings.Repeat("x", 20<<10)})
	if code(err) != connect.CodeResourceExhausted {
		t.Errorf("a large question: %v", err)
	}
	_, err = o.client(token.Operator).InstallMachine(t.Context(), &fleetv1.InstallMachineRequest{Machine: "nobody", FirstBootData: make([]byte, 20<<10)})
	if code(err) != connect.CodeInvalidArgument {
		t.Errorf("a large order: %v", err)
	}
}
