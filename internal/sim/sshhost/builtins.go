package sshhost

import (
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
)

var errOperand = errors.New("missing operand")

// flags takes leading options off args. known has the letters that are allowed.
func flags(args []string, known string) (map[rune]bool, []string, error) {
	set := map[rune]bool{}
	for len(args) > 0 && len(args[0]) > 1 && args[0][0] == '-' {
		if args[0] == "--" {
			return set, args[1:], nil
		}
		for _, letter := range args[0][1:] {
			if !strings.ContainsRune(known, letter) {
				return nil, nil, fmt.Errorf("option -%c is not simulated", letter)
			}
			set[letter] = true
		}
		args = args[1:]
	}
	return set, args, nil
}

func echo(_ *shell, args []string, io streams) (Status, error) {
	_, err := fmt.Fprintln(io.out, strings.Join(args, " "))
	return Status{}, err
}

// each calls do with each named file, or with standard input when there is none.
func each(sh *shell, names []string, in io.Reader, do func(name string, content io.Reader) error) error {
	if len(names) == 0 {
		return do("-", in)
	}
	var errs []error
	for _, name := range names {
		file, err := sh.files.open(name)
		if err == nil {
			err = errors.Join(do(name, file), file.Close())
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, plain(err)))
		}
	}
	return errors.Join(errs...)
}

func cat(sh *shell, args []string, std streams) (Status, error) {
	return Status{}, each(sh, args, std.in, func(_ string, content io.Reader) error {
		_, err := io.Copy(std.out, content)
		return err
	})
}

func sha256sum(sh *shell, args []string, std streams) (Status, error) {
	return Status{}, each(sh, args, std.in, func(name string, content io.Reader) error {
		digest, known := sh.files.digest(content)
		if !known {
			hash := sha256.New()
			if _, err := io.Copy(hash, content); err != nil {
				return err
			}
			digest = hex.EncodeToString(hash.Sum(nil))
		}
		_, err := fmt.Fprintf(std.out, "%s  %s\n", digest, name)
		return err
	})
}

// gunzip is gzip -dc: it decompresses standard input.
func gunzip(sh *shell, args []string, std streams) (Status, error) {
	set, args, err := flags(args, "dcf")
	if err != nil || len(args) > 0 || !set['d'] || !set['c'] {
		return Status{Code: exitUsage}, errors.Join(err, errors.New("only gzip -dc of standard input is simulated"))
	}
	if target, ok := std.out.(*outputFile); ok {
		_, target.local = std.in.(*os.File)
		return Status{}, target.inflate(std.in)
	}
	reader, err := gzip.NewReader(std.in)
	if err == nil {
		_, err = io.Copy(std.out, reader)
	}
	return Status{}, err
}

func mkdir(sh *shell, args []string, _ streams) (Status, error) {
	set, args, err := flags(args, "p")
	if err != nil || len(args) == 0 {
		return Status{}, errors.Join(err, missing(args))
	}
	for _, name := range args {
		if set['p'] {
			err = sh.files.root.MkdirAll(inside(name), 0o755)
		} else {
			err = sh.files.root.Mkdir(inside(name), 0o755)
		}
		if err != nil {
			return Status{}, fmt.Errorf("cannot create directory %q: %w", name, plain(err))
		}
	}
	return Status{}, nil
}

func missing(args []string) error {
	if len(args) == 0 {
		return errOperand
	}
	return nil
}

func chmod(sh *shell, args []string, _ streams) (Status, error) {
	if len(args) < 2 {
		return Status{}, errOperand
	}
	for _, name := range args[1:] {
		mode, err := parseMode(args[0], sh, name)
		if err == nil {
			err = sh.files.chmod(name, mode)
		}
		if err != nil {
			return Status{}, fmt.Errorf("%s: %w", name, plain(err))
		}
	}
	return Status{}, nil
}

// parseMode reads an octal mode, or one of the symbolic ones that people use to make a file
// executable.
func parseMode(text string, sh *shell, name string) (fs.FileMode, error) {
	if text == "+x" || text == "a+x" || text == "u+x" {
		info, err := sh.files.stat(name)
		if err != nil {
			return 0, err
		}
		if text == "u+x" {
			return info.Mode().Perm() | 0o100, nil
		}
		return info.Mode().Perm() | 0o111, nil
	}
	mode, err := strconv.ParseUint(text, 8, 12)
	if err != nil {
		return 0, fmt.Errorf("invalid mode %q", text)
	}
	return fs.FileMode(mode).Perm(), nil
}

func move(sh *shell, args []string, _ streams) (Status, error) {
	_, args, err := flags(args, "fT")
	if err != nil || len(args) != 2 {
		return Status{}, errors.Join(err, missing(nil))
	}
	target := args[1]
	if info, err := sh.files.stat(target); err == nil && info.IsDir() {
		target += "/" + args[0][strings.LastIndexByte(args[0], '/')+1:]
	}
	return Status{}, sh.files.root.Rename(inside(args[0]), inside(target))
}

func remove(sh *shell, args []string, _ streams) (Status, error) {
	set, args, err := flags(args, "rf")
	if err != nil {
		return Status{}, err
	}
	for _, name := range args {
		if set['r'] {
			err = sh.files.root.RemoveAll(inside(name))
		} else {
			err = sh.files.root.Remove(inside(name))
		}
		if err != nil && (!set['f'] || !errors.Is(err, fs.ErrNotExist)) {
			return Status{}, fmt.Errorf("cannot remove %q: %w", name, plain(err))
		}
	}
	return Status{}, nil
}

// test knows the file tests, and -n and -z.
func test(sh *shell, args []string, _ streams) (Status, error) {
	if len(args) > 0 && args[len(args)-1] == "]" {
		args = args[:len(args)-1]
	}
	negate := len(args) > 0 && args[0] == "!"
	if negate {
		args = args[1:]
	}
	if len(args) != 2 {
		return Status{Code: exitUsage}, errors.New("only tests of one operand are simulated")
	}
	info, err := sh.files.stat(args[1])
	there := err == nil
	var result bool
	switch args[0] {
	case "-e":
		result = there
	case "-f":
		result = there && info.Mode().IsRegular()
	case "-d":
		result = there && info.IsDir()
	case "-x":
		result = there && info.Mode()&0o111 != 0
	case "-r", "-w":
		result = there
	case "-s":
		result = there && info.Size() > 0
	case "-n":
		result = args[1] != ""
	case "-z":
		result = args[1] == ""
	default:
		return Status{Code: exitUsage}, fmt.Errorf("test %q is not simulated", args[0])
	}
	if result == negate {
		return Status{Code: 1}, nil
	}
	return Status{}, nil
}

func uname(sh *shell, args []string, io streams) (Status, error) {
	set, _, err := flags(args, "asnrvm")
	if err != nil {
		return Status{}, err
	}
	var words []string
	for _, field := range []struct {
		flag  rune
		value string
	}{
		{'s', "Linux"},
		{'n', sh.options.Hostname},
		{'r', sh.options.KernelRelease},
		{'v', "#1 SMP PREEMPT_DYNAMIC"},
		{'m', "x86_64"},
	} {
		if set['a'] || set[field.flag] || len(set) == 0 && field.flag == 's' {
			words = append(words, field.value)
		}
	}
	_, err = fmt.Fprintln(io.out, strings.Join(words, " "))
	return Status{}, err
}

func hostname(sh *shell, _ []string, io streams) (Status, error) {
	_, err := fmt.Fprintln(io.out, sh.options.Hostname)
	return Status{}, err
}

func id(_ *shell, args []string, io streams) (Status, error) {
	text := "uid=0(root) gid=0(root) groups=0(root)"
	if len(args) == 1 && args[0] == "-u" {
		text = "0"
	}
	_, err := fmt.Fprintln(io.out, text)
	return Status{}, err
}

func reboot(sh *shell, _ []string, _ streams) (Status, error) {
	if sh.options.Reboot == nil {
		return Status{}, errors.New("this machine cannot reboot itself")
	}
	return Status{}, sh.options.Reboot()
}
