/* doctor_attacks: attacks jails from inside, and the same attacks outside as a control. */
#pragma once

#include "cli/probe.h"
#include "wire/spec.h"

struct pd_err;

#define ATTACKS_MAX 96

enum attack_result {
    ATTACK_HELD,     /* works outside, not inside: the wall is there */
    ATTACK_UNPROVED, /* works nowhere on this host, so it shows nothing */
    ATTACK_ABSENT,   /* works inside, and jails of this rung do not claim to hold it */
    ATTACK_BROKEN,   /* works inside, and must not */
    ATTACK_RESULT_COUNT
};
const char *attack_result_name(enum attack_result r);

struct attack {
    const struct probe_attack *row;
    enum attack_result result;
    int tried, works_inside, works_outside;
    char detail[PROBE_DETAIL_MAX]; /* what the attack met inside */
};

struct attack_report {
    int jails_work;
    char why_not[320]; /* when they do not */
    struct attack attacks[ATTACKS_MAX];
    unsigned count;
    unsigned outside; /* how many work outside */
    unsigned results[ATTACK_RESULT_COUNT];
};

/* Starts two jails that must be at least of this rung (the second has low limits), and attacks
 * them. Takes about a tenth of a second; forks, so only for a single-threaded process. Never fails:
 * what went wrong is in the report. */
void attacks_run(enum rung rung, struct attack_report *ret);
