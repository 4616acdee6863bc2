package agentapi

import (
	"fmt"

	"google.golang.org/grpc/encoding"
	protocodec "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// boundedCodec is gRPC's own for protocol buffers, and refuses a request that would take far more
// memory than it has bytes. It is asked before anything else knows of the request: a message inside
// another one may be two bytes that say nothing, and is a struct of hundreds once it is decoded.
type boundedCodec struct{ encoding.CodecV2 }

func newBoundedCodec() boundedCodec { return boundedCodec{encoding.GetCodecV2(protocodec.Name)} }

// Unmarshal implements encoding.CodecV2. gRPC answers what it refuses with codes.Internal, as it
// does whatever makes no sense.
func (c boundedCodec) Unmarshal(data mem.BufferSlice, v any) error {
	buffer := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buffer.Free()
	if m, ok := v.(proto.Message); ok {
		most := mostInner(buffer.Len())
		if left := countInner(buffer.ReadOnlyData(), m.ProtoReflect().Descriptor(), most); left < 0 {
			return fmt.Errorf("%d bytes with more than %d messages inside", buffer.Len(), most)
		}
	}
	return c.CodecV2.Unmarshal(mem.BufferSlice{buffer}, v)
}

// mostInner is how many messages a request of that many bytes may have inside. A disk, a card or a
// module of memory that a report tells of has more bytes than 16: its name alone is half of that.
func mostInner(size int) int { return 256 + size/16 }

// countInner takes from left the messages that are inside of b, at any depth, and returns what is
// left; less than 0: it had not enough. What is no message of that kind is counted as far as it can
// be read, since decoding it fails there, too.
func countInner(b []byte, kind protoreflect.MessageDescriptor, left int) int {
	for len(b) > 0 && left >= 0 {
		number, wire, n := protowire.ConsumeTag(b)
		if n < 0 {
			return left
		}
		b = b[n:]
		if n = protowire.ConsumeFieldValue(number, wire, b); n < 0 {
			return left
		}
		if field := kind.Fields().ByNumber(number); field != nil && field.Message() != nil && wire == protowire.BytesType {
			inner, _ := protowire.ConsumeBytes(b)
			left = countInner(inner, field.Message(), left-1)
		}
		b = b[n:]
	}
	return left
}
