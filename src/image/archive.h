/* archive: which members a file has that `docker save` or an OCI tool has written, by name.
 *
 * Nothing is unpacked: small texts are kept in memory, of everything else is known where it is. The
 * names are looked up and never become names of files. */
#pragma once

#include "base/buf.h"

#include <stdint.h>
#include <stdio.h>

struct pd_err;

#define ARCHIVE_MEMBERS_MAX 8192u
#define ARCHIVE_TEXTS_MAX   (64u << 20)

struct archive_member {
    char *name;
    char *link;            /* of a link: which other member is meant; else NULL */
    uint64_t offset, size; /* of its contents in the file */
    uint8_t start[4];      /* its first bytes */
    uint8_t *text;         /* all of them, of what looks like JSON and is not large; else NULL */
};

struct archive {
    struct archive_member *members;
    uint32_t count;
    uint64_t texts; /* bytes of those */
};
#define ARCHIVE_EMPTY ((struct archive){0})
void archive_done(struct archive *a);
#define auto_archive __attribute__((cleanup(archive_done))) struct archive

/* Reads all of a file, from its beginning. PD_INVALID, PD_UNSUPPORTED, PD_TOO_LARGE. */
int archive_read(FILE *from, struct archive *ret, struct pd_err *e);
/* The member of this name; a link is followed once. NULL when there is none. */
const struct archive_member *archive_find(const struct archive *a, const char *name);
