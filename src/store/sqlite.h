/* sqlite: the store in a file, paddock.db in the state directory. */
#pragma once

#include "core/store.h"

/* Opens or makes it. `exclusive`: for the daemon; a second one on the same directory is refused
 * with PD_CONFLICT and the pid of the first. Without it (paddock key ...) a running daemon does not
 * mind. ":memory:" for tests. */
struct store *store_sqlite_open(const char *state_dir, int exclusive, struct pd_err *e);
