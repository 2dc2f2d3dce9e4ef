/* promises: roots that an engine keeps and that were promised to go, by name, in the keeper's state
 * directory. A client that asks for a removal is answered at once; should the engine be away, or
 * the keeper die before it is done, whoever comes next knows what is left to do. Nothing here waits
 * or fails: where the disk is full, a promise is forgotten with its keeper. */
#pragma once

void promise_make(const char *state_dir, const char *root);
/* It is done. Fine when there was none. */
void promise_keep(const char *state_dir, const char *root);
void promises_each(const char *state_dir, void (*each)(const char *root, void *arg), void *arg);
