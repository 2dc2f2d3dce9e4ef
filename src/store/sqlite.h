/* sqlite: the store in a file, paddock.db in the state directory. */
#pragma once

#include "store/store.h"

/* Opens or makes it; the directory and its parents are made (0700) when they are missing, the
 * file has mode 0600. `exclusive`: for the daemon; a second one on the same directory is refused
 * with PD_CONFLICT and the pid of the first. The lock goes with the process, however it ends.
 * Without it (paddock key ...) a running daemon does not mind. ":memory:" for tests.
 *
 * A database of a newer paddock is PD_UNSUPPORTED. One that is damaged or no database is
 * PD_INTERNAL, with what to do about it. Waits at most 5 s for another process that writes. */
struct store *store_sqlite_open(const char *state_dir, int exclusive, struct pd_err *e);
