package service

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
)

// OutliveHangups keeps SIGHUP from ending the process, until stop is called. Many send it to have a
// configuration read again, which these programs do when they start and not before. By itself it
// ends a Go program at once, which systemd takes for an orderly end.
func OutliveHangups(logger *slog.Logger) (stop func()) {
	hangups, ended := make(chan os.Signal, 1), make(chan struct{})
	signal.Notify(hangups, syscall.SIGHUP)
	go func() {
		defer close(ended)
		for range hangups {
			logger.Warn("SIGHUP changes nothing: a changed configuration counts from the next start")
		}
	}()
	return func() {
		signal.Stop(hangups)
		close(hangups)
		<-ended
	}
}

// UntilHangup returns a context that SIGHUP ends, too, until stop is called: a terminal that is
// closed and an SSH session that is lost send it. Who ignores it, as under nohup, goes on.
func UntilHangup(ctx context.Context) (until context.Context, stop context.CancelFunc) {
	if signal.Ignored(syscall.SIGHUP) {
		return context.WithCancel(ctx)
	}
	return signal.NotifyContext(ctx, syscall.SIGHUP)
}
