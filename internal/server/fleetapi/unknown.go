package fleetapi

import (
	"context"
	"fmt"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protopath"
	"google.golang.org/protobuf/reflect/protorange"

	"github.com/ironherd/ironherd/internal/fleet"
)

// knownOnly refuses calls whose requests have fields that this version does not know, at any depth.
// A newer caller may narrow or forbid something by such a field, and nobody would heed that.
func (s *Service) knownOnly() []connect.HandlerOption {
	return []connect.HandlerOption{
		connect.WithCodec(strictJSON("json")), connect.WithCodec(strictJSON("json; charset=utf-8")),
		connect.WithInterceptors(connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
			return func(ctx context.Context, request connect.AnyRequest) (connect.AnyResponse, error) {
				if m, ok := request.Any().(proto.Message); ok && hasUnknown(m) {
					return nil, s.fail(ctx, fleet.Errorf(fleet.KindUnsupported, "the request has a field that this control plane (version %s) does not know, "+
						"and nothing was done: upgrade it, or leave out what only newer ones know", s.options.Version))
				}
				return next(ctx, request)
			}
		})),
	}
}

// hasUnknown reports whether a message, or one in it, has a field that is not known.
func hasUnknown(m proto.Message) (has bool) {
	_ = protorange.Range(m.ProtoReflect(), func(at protopath.Values) error { // which returns no error
		has = has || at.Index(-1).Step.Kind() == protopath.UnknownAccessStep
		return nil
	})
	return has
}

// strictJSON is a codec of that name. Connect's own leaves out fields and values of enums that it
// does not know, so that a slip in a name goes unnoticed as well.
type strictJSON string

// Name implements connect.Codec.
func (s strictJSON) Name() string { return string(s) }

// Marshal implements connect.Codec.
func (strictJSON) Marshal(message any) ([]byte, error) {
	m, ok := message.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("%T is no message of an API", message)
	}
	return protojson.Marshal(m)
}

// Unmarshal implements connect.Codec.
func (strictJSON) Unmarshal(data []byte, message any) error {
	m, ok := message.(proto.Message)
	if !ok {
		return fmt.Errorf("%T is no message of an API", message)
	}
	return protojson.Unmarshal(data, m)
}
