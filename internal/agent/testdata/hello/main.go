// Command hello is what the agent's size is compared with: a program that does nothing but one call
// over gRPC and TLS.
package main

import (
	"context"
	"fmt"
	"os"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health/grpc_health_v1"
)

func main() {
	conn, err := grpc.NewClient(os.Args[1], grpc.WithTransportCredentials(credentials.NewTLS(nil)))
	if err == nil {
		_, err = grpc_health_v1.NewHealthClient(conn).Check(context.Background(), new(grpc_health_v1.HealthCheckRequest))
	}
	fmt.Println(err)
}
