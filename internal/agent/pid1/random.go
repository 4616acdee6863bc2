package pid1

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// seedBytes is how much randomness is carried: twice what the kernel's generator wants before it
// gives any.
const seedBytes = 64

// NewSeed returns randomness for the kernel that runs next. A kernel on a processor without a
// random number generator may gather its own only after minutes, and no TLS is spoken until then.
func NewSeed() []byte {
	seed := make([]byte, seedBytes)
	_, _ = rand.Read(seed) // never fails
	return seed
}

// AddSeed gives the kernel the seed in a file, which it removes: a seed is used once.
func AddSeed(path string) error {
	seed, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := os.Remove(path); err != nil {
		return err
	}
	device, err := os.OpenFile("/dev/random", os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer func() { _ = device.Close() }()
	added := poolInfo(seed)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, device.Fd(), unix.RNDADDENTROPY, uintptr(unsafe.Pointer(&added[0])))
	runtime.KeepAlive(added)
	if errno != 0 {
		return fmt.Errorf("add to the kernel's randomness: %w", errno)
	}
	return nil
}

// poolInfo is struct rand_pool_info of linux/random.h: how many bits of randomness, how many bytes,
// and the bytes.
func poolInfo(seed []byte) []byte {
	info := binary.NativeEndian.AppendUint32(nil, uint32(8*len(seed)))
	info = binary.NativeEndian.AppendUint32(info, uint32(len(seed)))
	return append(info, seed...)
}
