package freeport

// LetGo lets go of all ports that were found.
func LetGo() {
	owned.Lock()
	defer owned.Unlock()
	for _, socket := range owned.sockets {
		_ = socket.Close()
	}
	owned.sockets = nil
}
