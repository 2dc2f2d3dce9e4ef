/* parse: text that people type into numbers, strictly.
 *
 * Pure functions. Nothing is guessed: no leading blanks, no signs, no trailing text, no overflow.
 * On failure the error names the value and what would be valid. `what` is how the caller's user
 * knows the value, for example "--memory". */
#pragma once

#include <stdint.h>

struct pd_err;

/* Decimal digits only, within [min, max]. */
int parse_u64(const char *what, const char *text, uint64_t min, uint64_t max, uint64_t *ret,
              struct pd_err *e);
/* "512", "64K", "512M", "1G", "2T"; also KiB, MiB, GiB, TiB. Powers of 1024. */
int parse_size(const char *what, const char *text, uint64_t min, uint64_t max, uint64_t *ret,
               struct pd_err *e);
/* "30" (seconds), "1.5s", "200ms", "5m", "2h" into nanoseconds. */
int parse_duration(const char *what, const char *text, uint64_t max_ns, uint64_t *ret_ns,
                   struct pd_err *e);
/* "0.5", "2" into thousandths. */
int parse_milli(const char *what, const char *text, uint64_t min, uint64_t max, uint64_t *ret,
                struct pd_err *e);
