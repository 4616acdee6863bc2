package install

import (
	"fmt"

	"google.golang.org/protobuf/reflect/protoreflect"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// NotUnderstood returns the report of an install that must not begin, because its request has a
// field or a value that this agent does not know; nil: it knows them all. A newer control plane may
// narrow or forbid something by it, and nobody would heed that.
func NotUnderstood(request *agentv1.InstallRequest, options Options) *agentv1.InstallReport {
	if understood(request.ProtoReflect()) {
		return nil
	}
	report := ReportOf(request)
	report.NotUnderstood = true
	report.Error = fmt.Sprintf("the agent (version %s) does not understand all that the install asks for, and has done nothing", options.Version)
	return report
}

// understood reports whether all fields of a message and of those in it are known, and all values
// of their enums.
func understood(m protoreflect.Message) bool {
	known := len(m.GetUnknown()) == 0
	m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		known = known && understoodField(field, value)
		return known
	})
	return known
}

func understoodField(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
	switch v := value.Interface().(type) {
	case protoreflect.Message:
		return understood(v)
	case protoreflect.EnumNumber:
		return field.Enum().Values().ByNumber(v) != nil
	case protoreflect.List:
		for i := range v.Len() {
			if !understoodField(field, v.Get(i)) {
				return false
			}
		}
	case protoreflect.Map: // no request has one, and nothing looks into it
		return false
	}
	return true
}
