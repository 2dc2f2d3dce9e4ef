/* Any text as the router's rules, and decisions by those that are accepted.
 *
 * Properties: a refusal names what is wrong and leaves the rules alone; accepted rules are written
 * and read again the same; a decision chooses a provider that is not switched off, one that
 * isolates no less than the default where it falls back from it, and says why. */
#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "router/decide.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds)
{
    if (!holds)
        abort();
}

static const struct route_provider providers[] = {
    {"jail", RUNG_FULL, 0}, {"docker", RUNG_BASIC, 0}, {"local", RUNG_NONE, 0}};
#define PROVIDERS (sizeof providers / sizeof *providers)

static void decide(const struct router_rules *rules, unsigned shut, const char *asked,
                   const char *user)
{
    struct route_provider list[PROVIDERS];
    struct route_question q = {
        .asked = asked, .tenant = "t", .user = user, .template_name = "base", .allow_weaker = true};
    struct decision d;
    struct pd_err e = {.msg = ""};
    auto_buf steps = BUF_INIT(64u << 10);

    memcpy(list, providers, sizeof list);
    for (unsigned i = 0; i < PROVIDERS; i++)
        list[i].shut_for_ns = shut >> i & 1;
    if (route_decide(rules, list, PROVIDERS, &q, &d, &steps, &e) < 0) {
        require((e.code == PD_INVALID || e.code == PD_DENIED || e.code == PD_CAPACITY) && e.msg[0]);
        return;
    }

    require(d.provider < PROVIDERS && d.reason[0] && memchr(d.reason, 0, sizeof d.reason));
    require(!router_list_has(&rules->disabled, list[d.provider].name));
    require(d.next_count <= ROUTER_HOPS_MAX);
    if (d.by == ROUTE_BY_DEFAULT && d.is_fallback && !rules->allow_weaker) {
        unsigned first = 0;
        while (rules->usual[0] && strcmp(list[first].name, rules->usual) != 0)
            first++;
        require(list[d.provider].rung >= list[first].rung);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct router_rules rules, again, before;
    struct pd_err e = {.msg = ""};

    memset(&rules, 0x5a, sizeof rules);
    before = rules;
    if (router_rules_parse((const char *)data, size, providers, PROVIDERS, &rules, &e) < 0) {
        require(e.code == PD_INVALID && e.msg[0] && memchr(e.msg, 0, sizeof e.msg));
        require(!memcmp(&rules, &before, sizeof rules));
        return 0;
    }

    auto_buf out = BUF_INIT(4 * ROUTER_TEXT_MAX);
    struct json j = JSON_INIT(&out);
    router_rules_json(&rules, &j);
    require(!out.overflow);
    require(router_rules_parse((const char *)out.data, out.len, providers, PROVIDERS, &again, &e) ==
            0);
    auto_buf twice = BUF_INIT(4 * ROUTER_TEXT_MAX);
    j = JSON_INIT(&twice);
    router_rules_json(&again, &j);
    require(out.len == twice.len && !memcmp(out.data, twice.data, out.len));

    for (unsigned shut = 0; shut < 1u << PROVIDERS; shut++) {
        decide(&rules, shut, NULL, "ann");
        decide(&rules, shut, "docker", NULL);
        decide(&rules, shut, "podman", "bob");
    }
    return 0;
}
