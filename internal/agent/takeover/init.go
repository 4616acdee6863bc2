package takeover

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// maxInit bounds the encoded TakeoverInit; a chain of CA certificates is a few KiB.
const maxInit = 128 << 10

// canonicalUUID is the form of a UUID that RFC 9562, section 4, has everybody write.
var canonicalUUID = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)

const (
	defaultContactLimit = 10 * time.Minute
	maxContactLimit     = 24 * time.Hour
)

// ReadInit reads one TakeoverInit to the end of r and validates it.
func ReadInit(r io.Reader) (*agentv1.TakeoverInit, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxInit+1))
	if err != nil {
		return nil, fmt.Errorf("read the takeover message: %w", err)
	}
	if len(data) > maxInit {
		return nil, fmt.Errorf("the takeover message is larger than %d bytes", maxInit)
	}
	init := new(agentv1.TakeoverInit)
	if err := proto.Unmarshal(data, init); err != nil {
		return nil, errors.New("the input is not a takeover message")
	}
	if err := Validate(init); err != nil {
		return nil, err
	}
	return init, nil
}

// Validate says in one sentence what is wrong with an init message, if anything is.
func Validate(init *agentv1.TakeoverInit) error {
	if init == nil {
		return errors.New("the takeover message is missing")
	}
	if !canonicalUUID.MatchString(init.GetMachineId()) {
		return errors.New("the machine ID of the takeover message is not a UUID in its canonical form")
	}
	if init.GetTakeoverGeneration() <= 0 {
		return errors.New("the takeover generation must be above zero")
	}
	host, port, err := net.SplitHostPort(init.GetEndpoint())
	if err != nil || host == "" {
		return errors.New("the endpoint of the takeover message is not host:port")
	}
	if number, err := strconv.ParseUint(port, 10, 16); err != nil || number == 0 {
		return errors.New("the port of the endpoint is not a number from 1 to 65535")
	}
	if init.GetHeartbeatIntervalMs() <= 0 {
		return errors.New("the heartbeat interval must be above zero")
	}
	if limit := init.GetContactLimitMs(); limit < 0 || limit > maxContactLimit.Milliseconds() {
		return fmt.Errorf("the contact limit must be from 0 to %d milliseconds", maxContactLimit.Milliseconds())
	}
	return validateCA(init.GetCaCertificate())
}

// ContactLimit returns how long an agent in memory may go without being admitted.
func ContactLimit(init *agentv1.TakeoverInit) time.Duration {
	if init.GetContactLimitMs() <= 0 {
		return defaultContactLimit
	}
	return time.Duration(init.GetContactLimitMs()) * time.Millisecond
}

// validateCA wants PEM certificates, all of them readable; nothing at all is good too.
func validateCA(data []byte) error {
	if len(data) == 0 {
		return nil
	}
	found := false
	for {
		var block *pem.Block
		if block, data = pem.Decode(data); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return fmt.Errorf("a CA certificate of the takeover message cannot be read: %w", err)
		}
		found = true
	}
	if !found {
		return errors.New("the CA certificate of the takeover message is not in PEM form")
	}
	return nil
}
