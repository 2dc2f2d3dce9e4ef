/* How this works: the host is asked (doctor_host.c, doctor_settings.c, doctor_engines.c), then two
 * jails are attacked (doctor_attacks.c); here both are put into words or JSON, with one verdict. */
#include "cli/cli.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/json.h"
#include "cli/doctor_attacks.h"
#include "cli/doctor_checks.h"
#include "jail/builder.h"

#define REPORT_MAX (1u << 20)

const char doctor_usage[] =
    "usage: paddock doctor [--json]\n"
    "\n"
    "Says what this host offers for sandboxes, and proves it: attacks a jail from inside,\n"
    "and makes the same attacks outside to show that they can work at all.\n"
    "\n"
    "  --json   one JSON object: rung, reason, jails_work, checks, attacks\n"
    "\n"
    "Exit status: 0 when jails work and every wall held, 1 when not, 2 for a usage error.\n";

struct diagnosis {
    struct check_list checks;
    struct attack_report attacks;
    enum rung rung;
    char reason[320];
    int healthy;
};

static void diagnose(struct diagnosis *d)
{
    struct check_list *c = &d->checks;

    c->rootless = geteuid() != 0;
    unsetenv("PADDOCK_KEEPER"); /* what is examined is this host and this user, not a server */
    checks_place(c);
    checks_namespaces(c);
    checks_kernel(c);
    checks_store(c);
    checks_settings(c);
    checks_engines(c);

    d->rung =
        builder_best_rung(c->rootless, c->has_cgroups, c->cgroup_why, d->reason, sizeof d->reason);
    attacks_run(d->rung, &d->attacks);

    unsigned broken = d->attacks.results[ATTACK_BROKEN];
    if (!d->attacks.jails_work) {
        d->rung = RUNG_NONE;
        snprintf(d->reason, sizeof d->reason, "a jail could not be made: %.280s",
                 d->attacks.why_not);
    } else if (broken) {
        d->rung = RUNG_NONE;
        snprintf(d->reason, sizeof d->reason, "%u %s from inside a jail worked", broken,
                 broken == 1 ? "attack" : "attacks");
    } else if (!d->reason[0]) {
        snprintf(d->reason, sizeof d->reason, "every wall and every limit");
    }

    d->healthy = d->attacks.jails_work && !broken;
}

/* ---- JSON ---- */

static void put_json(const struct diagnosis *d, struct buf *out)
{
    struct json j = JSON_INIT(out);

    json_open(&j, '{');
    json_key(&j, "rung");
    json_cstr(&j, rung_name(d->rung));
    json_key(&j, "reason");
    json_cstr(&j, d->reason);
    json_key(&j, "jails_work");
    json_bool(&j, d->attacks.jails_work);

    json_key(&j, "checks");
    json_open(&j, '[');
    for (unsigned i = 0; i < d->checks.count; i++) {
        const struct check *c = &d->checks.rows[i];
        json_open(&j, '{');
        json_key(&j, "name");
        json_cstr(&j, c->name);
        json_key(&j, "status");
        json_cstr(&j, check_status_name(c->status));
        json_key(&j, "found");
        json_cstr(&j, c->found);
        json_key(&j, "why");
        json_cstr(&j, c->why);
        json_key(&j, "fix");
        json_cstr(&j, c->fix[0] ? c->fix : NULL);
        json_close(&j, '}');
    }
    json_close(&j, ']');

    json_key(&j, "attacks");
    json_open(&j, '[');
    for (unsigned i = 0; i < d->attacks.count; i++) {
        const struct attack *a = &d->attacks.attacks[i];
        json_open(&j, '{');
        json_key(&j, "name");
        json_cstr(&j, a->row->name);
        json_key(&j, "wall");
        json_cstr(&j, a->row->wall);
        json_key(&j, "result");
        json_cstr(&j, attack_result_name(a->result));
        json_key(&j, "works_inside");
        json_bool(&j, a->works_inside);
        json_key(&j, "works_outside");
        json_bool(&j, a->works_outside);
        json_key(&j, "detail");
        json_cstr(&j, a->detail);
        json_key(&j, "meaning");
        json_cstr(&j, a->row->meaning);
        json_close(&j, '}');
    }
    json_close(&j, ']');

    json_close(&j, '}');
    buf_putc(out, '\n');
}

/* ---- words ---- */

enum tone { TONE_GOOD, TONE_PLAIN, TONE_DOUBT, TONE_BAD };

/* A word in a column, coloured for terminals. */
static void put_word(struct buf *out, const char *word, enum tone tone, int colours)
{
    static const char *const codes[] = {"32", "2", "33", "1;31"};

    if (colours)
        buf_printf(out, "  \033[%sm%-8s\033[0m ", codes[tone], word);
    else
        buf_printf(out, "  %-8s ", word);
}

static void put_checks(const struct check_list *l, struct buf *out, int colours)
{
    buf_puts(out, "Host\n");
    for (unsigned i = 0; i < l->count; i++) {
        const struct check *c = &l->rows[i];
        put_word(out, check_status_name(c->status), (enum tone)c->status, colours);
        buf_printf(out, "%-29s %s\n", c->name, c->found);
        if (c->status >= CHECK_WARN)
            buf_printf(out, "  %-8s %-29s %s\n", "", "", c->why);
    }
}

/* One line for each wall: how its attacks ended; those that broke it get a line of their own. */
static void put_wall(const struct attack_report *r, unsigned first, struct buf *out, int colours)
{
    const char *wall = r->attacks[first].row->wall;
    unsigned n[ATTACK_RESULT_COUNT] = {0};

    for (unsigned i = first; i < r->count; i++)
        if (!strcmp(r->attacks[i].row->wall, wall))
            n[r->attacks[i].result]++;

    enum attack_result worst = n[ATTACK_BROKEN]     ? ATTACK_BROKEN
                               : n[ATTACK_HELD]     ? ATTACK_HELD
                               : n[ATTACK_UNPROVED] ? ATTACK_UNPROVED
                                                    : ATTACK_ABSENT;

    static const enum tone tones[] = {TONE_GOOD, TONE_PLAIN, TONE_DOUBT, TONE_BAD};
    put_word(out, attack_result_name(worst), tones[worst], colours);
    buf_printf(out, "%-10s", wall);

    const char *between = " ";
    static const char *const words[] = {"held", "not provable here", "not promised at this rung",
                                        "BROKEN"};
    for (unsigned k = 0; k < ATTACK_RESULT_COUNT; k++) {
        if (!n[k])
            continue;
        buf_printf(out, "%s%u %s", between, n[k], words[k]);
        between = ", ";
        if (k == ATTACK_HELD)
            continue;
        const char *sign = ": ";
        for (unsigned i = first; i < r->count; i++)
            if (!strcmp(r->attacks[i].row->wall, wall) && r->attacks[i].result == k) {
                buf_printf(out, "%s%s", sign, r->attacks[i].row->name);
                sign = " ";
            }
    }
    buf_putc(out, '\n');

    for (unsigned i = first; i < r->count; i++) {
        const struct attack *a = &r->attacks[i];
        if (a->result == ATTACK_BROKEN && !strcmp(a->row->wall, wall))
            buf_printf(out, "  %-8s %-10s %s: %s (%s)\n", "", "", a->row->name, a->row->meaning,
                       a->detail);
    }
}

static void put_attacks(const struct attack_report *r, struct buf *out, int colours)
{
    if (!r->count)
        return;

    buf_printf(out, "\nAttacks: %u tried; %u work outside, %u inside a jail", r->count, r->outside,
               r->results[ATTACK_BROKEN]);
    if (r->results[ATTACK_ABSENT])
        buf_printf(out, " (and %u that jails of this rung do not promise to hold)",
                   r->results[ATTACK_ABSENT]);
    buf_putc(out, '\n');

    for (unsigned i = 0; i < r->count; i++) {
        unsigned k = 0;
        while (strcmp(r->attacks[k].row->wall, r->attacks[i].row->wall) != 0)
            k++;
        if (k == i)
            put_wall(r, i, out, colours);
    }

    if (!r->outside)
        buf_puts(out, "  No attack works outside either: this proves nothing about jails.\n");
}

static void put_fixes(const struct check_list *l, struct buf *out)
{
    unsigned fixes = 0;
    for (unsigned i = 0; i < l->count; i++) {
        const char *fix = l->rows[i].fix;
        int repeated = 0;
        for (unsigned k = 0; k < i; k++)
            repeated |= !strcmp(l->rows[k].fix, fix);

        if (!fix[0] || repeated)
            continue;
        if (!fixes++)
            buf_puts(out, "To improve:\n");
        buf_printf(out, "  %s\n", fix);
    }
}

static void put_verdict(const struct diagnosis *d, struct buf *out, int colours)
{
    const char *begin = "", *end = "";

    if (colours) {
        begin = d->healthy ? "\033[32m" : "\033[1;31m";
        end = "\033[0m";
    }

    buf_printf(out, "\n%s%s: isolation '%s' for %s%s (%s)\n", begin,
               d->healthy              ? "Jails work"
               : d->attacks.jails_work ? "Jails are NOT SAFE here"
                                       : "Jails do NOT WORK here",
               rung_name(d->rung), d->checks.rootless ? "this user" : "root", end, d->reason);
}

int cmd_doctor(int argc, char **argv)
{
    static struct diagnosis d; /* large */
    struct pd_err e;
    struct options o = {.argc = argc, .argv = argv, .at = 1};
    int as_json = 0;

    while (options_next(&o)) {
        if (strcmp(o.name, "--json") != 0) {
            pd_fail(&e, PD_INVALID, "doctor: '%.40s' is not an option: --json", o.name);
            return cli_fail(&e);
        }
        if (options_no_value(&o, &e) < 0)
            return cli_fail(&e);
        as_json = 1;
    }

    if (o.at < argc) {
        pd_fail(&e, PD_INVALID, "doctor: '%.40s': takes no arguments, only --json", argv[o.at]);
        return cli_fail(&e);
    }

    diagnose(&d);
    auto_buf out = BUF_INIT(REPORT_MAX);
    if (as_json) {
        put_json(&d, &out);
    } else {
        int colours = isatty(STDOUT_FILENO) && !getenv("NO_COLOR");
        put_checks(&d.checks, &out, colours);
        put_attacks(&d.attacks, &out, colours);
        put_verdict(&d, &out, colours);
        put_fixes(&d.checks, &out);
    }

    if (out.overflow || fd_write_all(STDOUT_FILENO, out.data, out.len) < 0)
        return 1;
    return d.healthy ? 0 : 1;
}
