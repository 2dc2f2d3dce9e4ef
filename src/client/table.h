/* client_table: aligned columns for people.
 *
 * Cells are escaped (text.h). The last column is not padded; on a terminal it is cut to the
 * terminal's width. */
#pragma once

#include "base/buf.h"

#include <stdint.h>
#include <stdio.h>

#define TABLE_COLUMNS_MAX 12

struct table {
    unsigned columns;
    unsigned right;   /* bit per column that is aligned to the right */
    struct buf cells; /* each with its NUL, row by row, titles first */
    unsigned count;   /* of cells */
    unsigned cut;     /* width in characters of a line, 0: any */
};

/* `titles`: the names of the columns, separated by blanks; one that starts with '>' is aligned to
 * the right. */
void table_init(struct table *t, const char *titles);
void table_done(struct table *t);
/* Adds a cell; NULL shows as "-". */
void table_put(struct table *t, const char *text);
void table_printf(struct table *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Prints all rows. -1 when memory was short. */
int table_print(struct table *t, FILE *to);
/* Cuts lines to the terminal's width if `fd` is one. */
void table_fit(struct table *t, int fd);

#define auto_table __attribute__((cleanup(table_done))) struct table

/* 1234567 as "1.2M", with at most five characters. */
void format_size(char out[16], uint64_t bytes);
/* 93784 s as "1d2h"; two units at most. */
void format_age(char out[16], uint64_t seconds);
/* Milliseconds since the epoch of "2026-01-02T03:04:05.678Z", or -1. */
int64_t parse_time_ms(const char *text);
