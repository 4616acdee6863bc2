package object

import (
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NotFound reports whether the API server says that there is no such object. What stands before it,
// or a server that has only just started and does not serve the kind yet, answers 404 to anything,
// in words of its own.
func NotFound(err error) bool {
	return apierrors.IsNotFound(err) && !apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}

// Forbidden reports whether the API server says that our user has no right to it, and not what
// stands before it.
func Forbidden(err error) bool {
	return apierrors.IsForbidden(err) && !apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}
