/* spool: the output of a process, in a file whose byte offset is the stream's offset.
 *
 * Filled by splice(2) only: the kernel takes from the pipe exactly what it wrote to the file, so a
 * SIGKILL at any moment loses and doubles nothing, and after a restart the stream goes on at the
 * file's size. Kill-safe, not power-loss-safe. The file is made when the first byte comes. When it
 * holds more than `max` bytes the oldest are punched out.
 *
 * With `in_memory` the first SPOOL_HEAD bytes are kept in memory instead, for a command that
 * nobody relies on yet: spool_settle puts them into the file. More than that, or so much of all
 * spools together that memory would be short, and the file is made at once. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define SPOOL_HEAD (32u << 10)

struct pd_err;

struct spool {
    int dir;        /* the session's spool directory, not owned */
    char name[64];  /* file name in it */
    int fd;         /* -1 until there is something */
    uint64_t size;  /* bytes written so far = the next offset */
    uint64_t first; /* the oldest offset that is still there */
    uint64_t max;
    bool in_memory; /* bytes may go to `head` */
    bool deleted;   /* no file is made any more */
    uint8_t *head;  /* all bytes, which are in no file then; or NULL */
};

/* Opens the file again after a restart, if there is one. */
int spool_open(struct spool *s, int dir, const char *name, uint64_t max, struct pd_err *e);
/* Closes the descriptor only: what is never written again is opened for each read. Thousands of
 * ended commands are remembered. */
void spool_rest(struct spool *s);
void spool_done(struct spool *s);
void spool_remove(struct spool *s); /* deletes the file, too */
/* Deletes the file, and none is made from now on: for a command whose sandbox is gone, which
 * somebody may still read, or be about to store. A descriptor and what is in memory stay until
 * spool_done. */
void spool_delete(struct spool *s);

/* Moves the bytes in memory into the file, where further ones go from now on. 0, or -errno when the
 * file cannot take it: then it stays in memory, to be read as before. -EIDRM: it was deleted. */
int spool_settle(struct spool *s);
/* Is so much of ended commands in memory that it should be settled? `s` has ended. */
bool spool_should_settle(const struct spool *s);

/* Moves what the pipe holds into the file. Returns bytes moved (at least 1), 0 at the pipe's end,
 * -EAGAIN when it is empty, -ENOSPC and other -errno when the file cannot take it: then the bytes
 * are still in the pipe. */
ssize_t spool_fill(struct spool *s, int pipe);
/* The same for a terminal's master, which cannot be spliced into a file directly: through `via`, a
 * pipe of the caller's that may still hold bytes of the last time. */
ssize_t spool_fill_terminal(struct spool *s, int master, const int via[2]);
/* Forgets what is before `from`, or a little less: in whole blocks. */
void spool_forget(struct spool *s, uint64_t from);
ssize_t spool_read(const struct spool *s, uint64_t offset, void *out, size_t size,
                   struct pd_err *e);
