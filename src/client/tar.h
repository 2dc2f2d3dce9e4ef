/* client_tar: a directory of the user's as a tar stream, and back.
 *
 * What comes out of a sandbox is hostile. Unpacking writes below its directory only: it never
 * follows a symbolic link, leaves out devices, FIFOs and hard links, set-user-id bits and owners,
 * and symbolic links that lead out. What is left out is told on stderr. */
#pragma once

#include <stddef.h>
#include <sys/types.h>

struct pd_err;

/* Each gives or takes bytes; `read` returns 0 at the end. */
typedef int tar_write_fn(void *to, const void *data, size_t len, struct pd_err *e);
typedef ssize_t tar_read_fn(void *from, void *out, size_t size, struct pd_err *e);

/* Writes what is in the directory `dir`: files, directories and symbolic links. */
int tar_write(int dir, tar_write_fn *write, void *to, struct pd_err *e);
/* Writes these names below `dir`, each with what is in it, under the same name: relative, without
 * "..", through real directories. "." is all of `dir`. */
int tar_write_names(int dir, const char *const *names, size_t count, tar_write_fn *write, void *to,
                    struct pd_err *e);
/* Unpacks below the directory `dir`. Files that are there are replaced. */
int tar_unpack(int dir, tar_read_fn *read, void *from, struct pd_err *e);
