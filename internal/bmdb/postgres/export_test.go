package postgres

const PruneDefaultRows = pruneDefaultRows
