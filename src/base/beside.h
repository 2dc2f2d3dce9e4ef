/* beside: programs of the project that another one starts. */
#pragma once

#include <stddef.h>

struct pd_err;

/* Becomes the program of this name: the one beside this program, else the one where it is
 * installed (../libexec/paddock); with a '/' in the name, that one. argv[0] is set here. Returns
 * when there is none. */
void exec_beside(const char *name, const char **argv);

/* The path of such a program, without links. 0, or -1 when there is none. */
int beside_find(const char *name, char *out, size_t size);

/* May this path be started with all that this process may do? It must be absolute, without links,
 * a program, and neither it nor a directory above it may be changed by anybody but root and this
 * user. Otherwise PD_INVALID or PD_DENIED, with the remedy. */
int program_check(const char *path, struct pd_err *e);
