/* e2b_entry: a file as E2B's clients are told of it (EntryInfo). Pure: worker's record in, JSON
 * out. */
#pragma once

#include "wire/record.h"

struct json;

/* The object. Of a link, `type`, `mode` and `metadata` are those of what it leads to, everything
 * else its own; one that leads nowhere has no type, and its target is what is written in it. Names
 * that are no UTF-8 have U+FFFD in them. */
void e2b_entry_json(struct json *j, const struct record_detail *d);

/* As Go's os.FileMode writes it: "-rw-r--r--", "drwxr-xr-x", "Lrwxrwxrwx", "dtrwxrwxrwx". */
#define E2B_PERMISSIONS_SIZE 16
void e2b_permissions(uint32_t type, uint32_t mode, char out[E2B_PERMISSIONS_SIZE]);
/* "2026-01-02T03:04:05.000000006Z". Years that RFC 3339 does not know become its first or last
 * moment. */
#define E2B_TIME_SIZE 96
void e2b_time(int64_t ns, char out[E2B_TIME_SIZE]);
