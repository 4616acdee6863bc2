package reconciler

import (
	"context"
	"errors"
	"log/slog"
	"time"
)

// probeEvery is the part of the TTL after which this node's API server is asked again, and within
// which it has to answer. Two failures in a row are a fault, so it takes at most four fifths of the
// TTL to notice that it is dead or hangs.
const probeEvery = 5

// probe asks this node's API server again and again, and keeps in s.fault why it cannot be used.
func (s *Service) probe(ctx context.Context) error {
	prober := s.can.prober
	if prober == nil {
		s.fault.Set("")
		<-ctx.Done()
		return nil
	}
	interval, failed := s.config.TTL/probeEvery, 0
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		attempt, cancel := context.WithTimeout(ctx, interval)
		err := prober.Probe(attempt)
		if err == nil {
			err = s.probeCluster(attempt)
		}
		cancel()
		if ctx.Err() != nil {
			return nil
		}
		fault, known := s.fault.Get()
		switch {
		case err == nil:
			failed = 0
			if fault != "" {
				s.config.Logger.InfoContext(ctx, "the API server of this node can be used again")
			}
			if fault != "" || !known {
				s.fault.Set("")
			}
		case known && fault == "" && failed == 0 && !errors.Is(err, errOtherCluster):
			failed++ // once is no fault yet
		case fault != err.Error():
			if fault == "" || errors.Is(err, errOtherCluster) {
				s.config.Logger.WarnContext(ctx, "the API server of this node cannot be used", slog.Any("err", err))
			}
			s.fault.Set(err.Error())
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// checkProbe returns why this node's API server cannot be used.
func (s *Service) checkProbe(context.Context) error {
	if fault, _ := s.fault.Get(); fault != "" {
		return errors.New(fault)
	}
	return nil
}

// awaitProbe waits until the API server has been asked once, so that nobody stands for election
// without knowing, and returns the fault.
func (s *Service) awaitProbe(ctx context.Context) (fault string) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	return <-s.fault.Watch(ctx)
}
