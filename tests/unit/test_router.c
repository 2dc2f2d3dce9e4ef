/* Decisions: shares, rules, the order of a decision, fallbacks, commands, older names. */
#include "unit.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "router/decide.h"
#include "router/older_names.h"

#include <stdio.h>
#include <string.h>

static const struct route_provider providers[] = {
    {"jail", RUNG_FULL, 0}, {"docker", RUNG_BASIC, 0},  {"local", RUNG_NONE, 0},
    {"e2b", RUNG_FULL, 0},  {"cloudrun", RUNG_FULL, 0},
};
#define PROVIDERS COUNT(providers)

/* Parsed rules, static: they are large. */
static struct router_rules *rules_of(const char *text)
{
    static struct router_rules rules;
    struct pd_err e = {.msg = ""};

    rules = ROUTER_RULES_INIT;
    if (router_rules_parse(text, strlen(text), providers, PROVIDERS, &rules, &e) < 0)
        fail_msg("%s: %s", text, e.msg);
    return &rules;
}

/* ---- shares ---- */

static void test_the_hash_is_murmur3(void **state)
{
    static const struct {
        const char *text;
        uint32_t hash;
    } vectors[] = {{"gr1:123", 538421172},
                   {"groupX:999", 3843606124},
                   {"sbx.provider:sess-1", 1659983394},
                   {"", 0},
                   {"test", 0xba6bd213},
                   {"Hello, world!", 0xc0363e43},
                   {"a", 0x3c2569b2}};
    (void)state;

    for (unsigned i = 0; i < COUNT(vectors); i++)
        assert_int_equal(murmur3(vectors[i].text, strlen(vectors[i].text), 0), vectors[i].hash);
    assert_int_equal(murmur3("test", 4, 0x9747b28c), 0x704b81dc);
    assert_int_equal(murmur3("aaaa", 4, 0x9747b28c), 0x5a97808a);
    assert_int_equal(murmur3("Hello, world!", 13, 0x9747b28c), 0x24884cba);

    assert_int_equal(share_of("gr1", "123"), 1172);
    assert_int_equal(share_of("groupX", "999"), 6124);
    assert_int_equal(share_of("sbx.provider", "sess-1"), 3394);
}

#define KEYS 1000000u

static void test_a_million_keys_give_the_share_within_a_fifth_of_a_percent(void **state)
{
    static uint16_t bucket[KEYS];
    static const unsigned shares[] = {0, 1, 100, 1000, 1250, 2500, 5000, 9000, 9999, 10000};
    unsigned before = 0;
    char key[32];
    (void)state;

    for (unsigned i = 0; i < KEYS; i++) {
        snprintf(key, sizeof key, "user-%u", i);
        bucket[i] = (uint16_t)share_of("docker-rollout", key);
    }

    for (unsigned s = 0; s < COUNT(shares); s++) {
        unsigned in = 0;
        for (unsigned i = 0; i < KEYS; i++)
            in += bucket[i] < shares[s];
        double off = (double)in / KEYS - shares[s] / 10000.0;
        if (off > 0.002 || off < -0.002)
            fail_msg("%u of %u for a share of %u", in, KEYS, shares[s]);
        assert_true(in >= before);
        before = in;
    }
}

static void test_raising_a_percentage_only_adds_users(void **state)
{
    static unsigned char was_in[20000];
    char text[200], user[32];
    struct pd_err e;
    (void)state;

    for (unsigned percentage = 0; percentage <= 100; percentage += 5) {
        snprintf(text, sizeof text,
                 "{\"flags\":[{\"name\":\"f\",\"provider\":\"docker\",\"percentage\":%u}]}",
                 percentage);
        const struct router_rules *r = rules_of(text);
        for (unsigned i = 0; i < COUNT(was_in); i++) {
            snprintf(user, sizeof user, "u%u", i);
            struct route_question q = {.user = user};
            struct decision route;
            assert_int_equal(route_decide(r, providers, PROVIDERS, &q, &route, NULL, &e), 0);
            bool in = route.by == ROUTE_BY_FLAG;
            assert_true(in || !was_in[i]);
            was_in[i] = in;
        }
    }
    for (unsigned i = 0; i < COUNT(was_in); i++)
        assert_true(was_in[i]);
}

/* ---- the order ---- */

#define RULE(more)     "{\"rules\":[{\"name\":\"r\"," more "}]"
#define ALL_ON_DOCKER  "\"flags\":[{\"name\":\"f\",\"provider\":\"docker\",\"percentage\":100}]"
#define NONE_ON_DOCKER "\"flags\":[{\"name\":\"f\",\"provider\":\"docker\",\"percentage\":0}]"
#define ARMS                                                                                       \
    "\"experiment\":{\"name\":\"x\",\"arms\":[{\"name\":\"a\",\"provider\":\"e2b\",\"weight\":1}," \
    "{\"name\":\"b\",\"provider\":\"e2b\",\"weight\":1}]}"

/* `shut` and `asked` as letters: j(ail) d(ocker) l(ocal) e(2b) c(loudrun). `chosen` is a provider,
 * or an error's code with a part of its message. */
static const struct {
    const char *rules, *asked, *tenant, *user, *shut;
    bool allow_weaker;
    const char *chosen, *reason;
} decisions[] = {
    /* Each step wins over those behind it. */
    {"{}", NULL, "t", NULL, "", false, "jail", "default provider of this server"},
    {"{\"default\":\"e2b\"}", NULL, "t", NULL, "", false, "e2b", "default provider"},
    {"{\"default\":\"e2b\"}", "auto", "t", NULL, "", false, "e2b", "default provider"},
    {"{\"default\":\"docker\"," ARMS "}", NULL, "t", "u", "", false, "e2b", "of experiment x"},
    {"{" ALL_ON_DOCKER "," ARMS "}", NULL, "t", "u", "", false, "docker", "flag f at 100 %"},
    {"{" NONE_ON_DOCKER "," ARMS "}", NULL, "t", "u", "", false, "e2b", "arm"},
    {"{" NONE_ON_DOCKER "}", NULL, "t", "u", "", false, "jail", "default"},
    {RULE("\"provider\":\"local\"") "," ALL_ON_DOCKER "}", NULL, "t", "u", "", false, "local",
     "rule r"},
    {RULE("\"provider\":\"local\"") "," ALL_ON_DOCKER "}", "cloudrun", "t", "u", "", false,
     "cloudrun", "asked for by the request"},
    /* Rules fit by tenant, user and template; the first one that fits counts. */
    {RULE("\"tenant\":\"t\",\"provider\":\"docker\"") "}", NULL, "t", NULL, "", false, "docker",
     "rule r"},
    {RULE("\"tenant\":\"t\",\"provider\":\"docker\"") "}", NULL, "T", NULL, "", false, "jail",
     "default"},
    {RULE("\"user\":\"u\",\"provider\":\"docker\"") "}", NULL, "t", NULL, "", false, "jail",
     "default"},
    {RULE("\"user\":\"u\",\"provider\":\"docker\"") "}", NULL, "t", "u", "", false, "docker",
     "rule r"},
    {RULE("\"tenant\":\"t\",\"user\":\"u\",\"provider\":\"docker\"") "}", NULL, "x", "u", "", false,
     "jail", "default"},
    {RULE("\"template\":\"base\",\"provider\":\"docker\"") "}", NULL, "t", "u", "", false, "jail",
     "default"},
    {RULE("\"template\":\"default\",\"provider\":\"docker\"") "}", NULL, "t", "u", "", false,
     "docker", "rule r"},
    /* A rule without a provider leaves the choice to what follows. */
    {RULE("\"fallback\":[\"jail\"]") "," ALL_ON_DOCKER "}", NULL, "t", "u", "", false, "docker",
     "flag f"},
    /* Fallbacks: in order, of the matching rule or of all, never weaker. */
    {"{\"default\":\"docker\",\"fallback\":[\"e2b\",\"jail\"]}", NULL, "t", NULL, "d", false, "e2b",
     "fallback: docker fails and is left alone (default"},
    {"{\"default\":\"docker\",\"fallback\":[\"e2b\",\"jail\"]}", NULL, "t", NULL, "de", false,
     "jail", "fallback: docker"},
    {"{\"default\":\"docker\",\"fallback\":[\"local\"]}", NULL, "t", NULL, "d", false, "capacity",
     "provider 'docker' fails and is left alone for 30 s"},
    {"{\"default\":\"docker\",\"fallback\":[\"local\",\"jail\"]}", NULL, "t", NULL, "d", false,
     "jail", "fallback: docker"},
    {"{\"default\":\"docker\",\"fallback\":[\"local\"]}", NULL, "t", NULL, "d", true, "capacity",
     "left alone"},
    {"{\"default\":\"docker\",\"fallback\":[\"local\"],\"allow_weaker\":true}", NULL, "t", NULL,
     "d", false, "capacity", "left alone"},
    {"{\"default\":\"docker\",\"fallback\":[\"local\"],\"allow_weaker\":true}", NULL, "t", NULL,
     "d", true, "local", "fallback: docker"},
    {RULE("\"provider\":\"docker\"") ",\"fallback\":[\"jail\"]}", NULL, "t", NULL, "d", false,
     "jail", "fallback: docker"},
    {RULE("\"provider\":\"docker\",\"fallback\":[]") ",\"fallback\":[\"jail\"]}", NULL, "t", NULL,
     "d", false, "capacity", "left alone"},
    {RULE("\"provider\":\"docker\"") "}", NULL, "t", NULL, "d", false, "capacity", "left alone"},
    /* A flag or an arm falls back to the default, unless that isolates less. */
    {"{" ALL_ON_DOCKER "}", NULL, "t", "u", "d", false, "jail", "fallback: docker fails"},
    {"{\"default\":\"local\"," ALL_ON_DOCKER "}", NULL, "t", "u", "d", false, "capacity",
     "left alone"},
    {"{\"default\":\"docker\"," ARMS "}", NULL, "t", "u", "e", false, "capacity", "'e2b' fails"},
    {"{\"default\":\"cloudrun\"," ARMS "}", NULL, "t", "u", "e", false, "cloudrun",
     "fallback: e2b"},
    /* Switched off. */
    {"{\"disabled\":[\"docker\"]," ALL_ON_DOCKER "}", NULL, "t", "u", "", false, "jail",
     "fallback: docker is switched off"},
    {"{\"disabled\":[\"jail\"]}", NULL, "t", NULL, "", false, "denied",
     "'jail' is switched off by the operator"},
    {"{\"disabled\":[\"docker\"]}", "docker", "t", NULL, "", false, "denied", "auto, jail, docker"},
    {"{\"default\":\"docker\",\"fallback\":[\"e2b\",\"jail\"],\"disabled\":[\"e2b\"]}", NULL, "t",
     NULL, "d", false, "jail", "fallback: docker"},
    /* What a request names falls back only by a rule of its own. */
    {"{\"fallback\":[\"jail\"]}", "docker", "t", NULL, "d", false, "capacity", "left alone"},
    {RULE("\"fallback\":[\"jail\"]") "}", "docker", "t", NULL, "d", false, "jail",
     "fallback: docker fails and is left alone (asked for"},
    {RULE("\"tenant\":\"x\",\"fallback\":[\"jail\"]") "}", "docker", "t", NULL, "d", false,
     "capacity", "left alone"},
    /* Names that are known and not configured, and names that are not. */
    {"{}", "podman", "t", NULL, "", false, "invalid",
     "'podman' is not configured on this server: configured are auto, jail, docker, local, e2b"},
    {"{\"fallback\":[\"jail\"]}", "podman", "t", NULL, "", false, "invalid", "not configured"},
    {RULE("\"fallback\":[\"jail\"]") "}", "podman", "t", NULL, "", false, "jail",
     "fallback: podman is not configured (asked for"},
    {RULE("\"fallback\":[\"docker\"]") "}", "fargate", "t", NULL, "", false, "invalid",
     "'fargate' is not configured"},
    {"{}", "dcoker", "t", NULL, "", false, "invalid", "'dcoker' is not one of this server's: auto"},
    {RULE("\"fallback\":[\"docker\"]") "}", "dcoker", "t", NULL, "", false, "invalid", "'dcoker'"},
    {"{}", "", "t", NULL, "", false, "invalid", "'' is not one"},
    {"{}", "jail2345678901234567890123456789012345678901234567890", "t", NULL, "", false, "invalid",
     "is not one"},
    /* Every breaker is open: the default is tried. */
    {"{}", NULL, "t", NULL, "jdlec", false, "jail", "every provider failed"},
    {"{}", NULL, "t", NULL, "jdle", false, "capacity", "left alone"},
    {"{" ALL_ON_DOCKER "}", NULL, "t", "u", "jdlec", false, "jail", "every provider failed"},
    {"{\"default\":\"local\"," ALL_ON_DOCKER "}", NULL, "t", "u", "jdlec", false, "capacity",
     "left alone"},
    {"{}", "docker", "t", NULL, "jdlec", false, "capacity", "left alone"},
};

static void test_the_order_of_a_decision(void **state)
{
    (void)state;

    for (unsigned i = 0; i < COUNT(decisions); i++) {
        struct route_provider list[PROVIDERS];
        struct pd_err e = {.msg = ""};
        struct decision route = {0};
        memcpy(list, providers, sizeof list);
        for (unsigned p = 0; p < PROVIDERS; p++)
            if (strchr(decisions[i].shut, list[p].name[0]))
                list[p].shut_for_ns = 30 * NS_PER_S;

        struct route_question q = {.asked = decisions[i].asked,
                                   .tenant = decisions[i].tenant,
                                   .user = decisions[i].user,
                                   .template_name = "default",
                                   .allow_weaker = decisions[i].allow_weaker};
        int r = route_decide(rules_of(decisions[i].rules), list, PROVIDERS, &q, &route, NULL, &e);
        const char *chosen = r == 0 ? list[route.provider].name : pd_code_name(e.code);
        const char *text = r == 0 ? route.reason : e.msg;
        if (strcmp(chosen, decisions[i].chosen) != 0 || !strstr(text, decisions[i].reason))
            fail_msg("row %u, %s, asked %s: %s, '%s'", i, decisions[i].rules,
                     q.asked ? q.asked : "nothing", chosen, text);
    }
}

/* Every set of open breakers, of disabled providers, of what is asked and of fallbacks: what is
 * chosen instead never isolates less than the first choice. */
static void test_no_fallback_weakens_isolation(void **state)
{
    unsigned fell_back = 0;
    (void)state;

    for (unsigned first = 0; first < PROVIDERS; first++)
        for (unsigned shut = 0; shut < 1u << PROVIDERS; shut++)
            for (unsigned off = 0; off < (1u << PROVIDERS) - 1; off++)
                for (unsigned by = 0; by < 3; by++) {
                    static struct router_rules rules;
                    rules = ROUTER_RULES_INIT;
                    struct route_provider list[PROVIDERS];
                    struct route_question q = {.tenant = "t", .allow_weaker = true};
                    struct decision route;
                    struct pd_err e;

                    memcpy(list, providers, sizeof list);
                    for (unsigned p = 0; p < PROVIDERS; p++) {
                        list[p].shut_for_ns = shut >> p & 1;
                        snprintf(rules.fallback.names[rules.fallback.count++], 32, "%s",
                                 list[PROVIDERS - 1 - p].name);
                        if (off >> p & 1)
                            snprintf(rules.disabled.names[rules.disabled.count++], 32, "%s",
                                     list[p].name);
                    }
                    if (by == 0)
                        snprintf(rules.usual, sizeof rules.usual, "%s", list[first].name);
                    if (by == 1) {
                        rules.rule_count = 1;
                        snprintf(rules.rules[0].provider, 32, "%s", list[first].name);
                    }
                    if (by == 2) {
                        rules.flag_count = 1;
                        rules.flags[0].share = SHARE_ALL;
                        snprintf(rules.flags[0].provider, 32, "%s", list[first].name);
                    }

                    if (route_decide(&rules, list, PROVIDERS, &q, &route, NULL, &e) < 0)
                        continue;
                    assert_true(list[route.provider].rung >= list[first].rung);
                    assert_false(off >> route.provider & 1);
                    for (unsigned n = 0; n < route.next_count; n++)
                        assert_true(list[route.next[n]].rung >= list[first].rung &&
                                    route.next[n] != route.provider);
                    fell_back += route.provider != first;
                }
    assert_true(fell_back > 1000);
}

static void test_arms_take_their_weights(void **state)
{
    unsigned in[3] = {0};
    struct pd_err e;
    char user[32];
    (void)state;
    const struct router_rules *r = rules_of(
        "{\"experiment\":{\"name\":\"x\",\"arms\":[{\"name\":\"a\",\"provider\":\"jail\","
        "\"weight\":"
        "70},{\"name\":\"none\",\"provider\":\"local\",\"weight\":0},{\"name\":\"b\",\"provider\":"
        "\"docker\",\"weight\":30}]}}");

    for (unsigned i = 0; i < 200000; i++) {
        struct decision route;
        snprintf(user, sizeof user, "user-%u", i);
        struct route_question q = {.user = user};
        assert_int_equal(route_decide(r, providers, PROVIDERS, &q, &route, NULL, &e), 0);
        assert_int_equal(route.by, ROUTE_BY_ARM);
        in[route.name[0] == 'a' ? 0 : route.name[0] == 'n' ? 1 : 2]++;
    }
    assert_true(in[0] > 139000 && in[0] < 141000);
    assert_int_equal(in[1], 0);
}

/* The cheapest provider that isolates enough for what a command is about to do. */
static void test_commands_get_the_cheapest_that_will_do(void **state)
{
    static const struct {
        const char *rules, *command, *shut, *chosen;
    } rows[] = {
        {"{}", "ls", "", "local"},
        {"{}", "touch a", "", "local"},
        {"{}", "pip install x", "", "docker"},
        {"{}", "curl https://example.com", "", "docker"},
        {"{}", "python3 x.py", "", "jail"},
        {"{}", "cat /etc/passwd", "", "jail"},
        {"{}", "ls; python3 x.py", "", "jail"},
        {"{\"disabled\":[\"local\"]}", "ls", "", "docker"},
        {"{}", "ls", "l", "docker"},
        {"{}", "pip install x", "d", "jail"},
        {"{}", "python3 x.py", "j", "e2b"},
        {"{}", "python3 x.py", "jec", "capacity"},
        {"{\"disabled\":[\"jail\",\"e2b\",\"cloudrun\"]}", "python3 x.py", "", "docker"},
        {"{\"disabled\":[\"jail\",\"e2b\",\"cloudrun\"],\"commands\":{\"unknown\":\"full\"}}",
         "python3 x.py", "", "isolation"},
        {"{\"commands\":{\"read\":\"full\"}}", "ls", "", "jail"},
        {"{\"commands\":{\"read\":\"strictest\"}}", "ls", "", "jail"},
        {"{\"commands\":{\"read\":\"full\"}}", "touch a", "", "local"},
        {"{\"rules\":[{\"name\":\"r\",\"provider\":\"e2b\"}]}", "ls", "", "e2b"},
    };
    (void)state;

    for (unsigned i = 0; i < COUNT(rows); i++) {
        struct route_provider list[PROVIDERS];
        struct command_verdict verdict;
        struct decision route;
        struct pd_err e = {.msg = ""};
        memcpy(list, providers, sizeof list);
        for (unsigned p = 0; p < PROVIDERS; p++)
            list[p].shut_for_ns = strchr(rows[i].shut, list[p].name[0]) != NULL;

        command_classify(rows[i].command, "/workspace", &verdict);
        struct route_question q = {.tenant = "t", .command = &verdict};
        int r = route_decide(rules_of(rows[i].rules), list, PROVIDERS, &q, &route, NULL, &e);
        const char *got = r == 0 ? list[route.provider].name : pd_code_name(e.code);
        if (strcmp(got, rows[i].chosen) != 0)
            fail_msg("row %u, %s: %s, '%s'", i, rows[i].command, got,
                     r == 0 ? route.reason : e.msg);
        if (r == 0 && strcmp(rows[i].chosen, "e2b") != 0)
            assert_int_equal(route.by, ROUTE_BY_COMMAND);
    }
}

static void test_steps_tell_what_was_seen(void **state)
{
    struct route_question q = {.tenant = "t", .user = "u"};
    struct decision route;
    struct pd_err e;
    auto_buf steps = BUF_INIT(4096);
    (void)state;
    const struct router_rules *r =
        rules_of("{\"rules\":[{\"name\":\"r\",\"tenant\":\"x\",\"provider\":\"docker\"}],"
                 "\"flags\":[{\"name\":\"f\",\"provider\":\"docker\",\"percentage\":0}]}");

    assert_int_equal(route_decide(r, providers, PROVIDERS, &q, &route, &steps, &e), 0);
    const char *text = buf_cstr(&steps);
    assert_non_null(strstr(text, "rules: none of 1 fits\n"));
    assert_non_null(strstr(text, "flag f: bucket "));
    assert_non_null(strstr(text, "not in its share\n"));
    assert_non_null(strstr(text, "result: jail, default provider of this server\n"));
}

/* ---- the configuration ---- */

static const struct {
    const char *text, *message;
} mistakes[] = {
    {"", "router: not JSON"},
    {"{", "router: not JSON"},
    {"[]", "router: must be an object"},
    {"{\"default\":\"jail\",\"default\":\"jail\"}", "not JSON"},
    {"{\"defualt\":\"jail\"}", "'defualt' is not known: members are default, disabled, rules"},
    {"{\"default\":1}", "default: must be a text of 1 to 31 bytes"},
    {"{\"default\":\"\"}", "default: must be a text"},
    {"{\"default\":\"podman\"}",
     "default: provider 'podman' is not configured here: configured are "
     "jail, docker, local, e2b, cloudrun; the setting `providers`"},
    {"{\"default\":\"dcoker\"}", "default: 'dcoker' is not a provider: configured are jail"},
    {"{\"disabled\":\"jail\"}", "disabled: must be an array"},
    {"{\"disabled\":[1]}", "disabled[0]: must be a provider's name"},
    {"{\"disabled\":[\"x\"]}", "disabled: 'x' is not a provider"},
    {"{\"disabled\":[\"jail\",\"jail\"]}", "disabled: 'jail' is there twice"},
    {"{\"disabled\":[\"jail\",\"docker\",\"local\",\"e2b\",\"cloudrun\"]}",
     "disabled: names every provider"},
    {"{\"fallback\":[\"x\"]}", "fallback: 'x' is not a provider"},
    {"{\"allow_weaker\":\"yes\"}", "allow_weaker: must be true or false"},
    {"{\"rules\":{}}", "rules: must be an array of at most 64"},
    {"{\"rules\":[1]}", "rules[0]: must be an object"},
    {"{\"rules\":[{\"provider\":\"jail\"}]}", "rules[0].name: is missing"},
    {"{\"rules\":[{\"name\":\"r\"}]}", "rules[0]: 'r' says neither a provider nor a fallback"},
    {"{\"rules\":[{\"name\":\"r\",\"provider\":\"x\"}]}", "rules[0].provider: 'x' is not a"},
    {"{\"rules\":[{\"name\":\"r\\n\",\"provider\":\"jail\"}]}", "rules[0].name: has a control"},
    {"{\"rules\":[{\"name\":\"r\",\"provider\":\"jail\",\"tennant\":\"t\"}]}",
     "rules[0]: 'tennant' is not known: members are name, tenant"},
    {"{\"flags\":[{\"name\":\"f\",\"provider\":\"jail\"}]}", "flags[0].percentage: is missing"},
    {"{\"flags\":[{\"name\":\"f\",\"provider\":\"jail\",\"percentage\":120}]}",
     "flags[0].percentage: 120 is not in the range 0 to 100"},
    {"{\"flags\":[{\"name\":\"f\",\"provider\":\"jail\",\"percentage\":-1}]}",
     "flags[0].percentage: -1 is not in the range"},
    {"{\"flags\":[{\"name\":\"f\",\"provider\":\"jail\",\"percentage\":1.234}]}",
     "flags[0].percentage: 1.234 has more than two decimals"},
    {"{\"flags\":[{\"name\":\"f\",\"provider\":\"jail\",\"percentage\":\"5\"}]}",
     "flags[0].percentage: must be a number"},
    {"{\"flags\":[{\"name\":\"f\",\"percentage\":5}]}", "flags[0].provider: is missing"},
    {"{\"flags\":[{\"name\":\"f\",\"provider\":\"jail\",\"percentage\":5},{\"name\":\"f\","
     "\"provider\":\"jail\",\"percentage\":5}]}",
     "flags: 'f' is there twice"},
    {"{\"experiment\":{\"name\":\"x\",\"guard\":{\"percentage\":30}}}",
     "experiment.guard: must say creations, commands, or both"},
    {"{\"experiment\":{\"name\":\"x\",\"guard\":{\"percentage\":101,\"creations\":1}}}",
     "experiment.guard.percentage: "},
    {"{\"experiment\":{\"name\":\"x\",\"guard\":{\"percentage\":1.5,\"creations\":1}}}",
     "whole numbers"},
    {"{\"experiment\":{\"name\":\"x\",\"guard\":{\"after\":1}}}", "'after'"},
    {"{\"experiment\":{\"name\":\"x\",\"arms\":[]}}",
     "experiment.arms: must be an array of 2 to 8"},
    {"{\"experiment\":{\"name\":\"x\",\"arms\":[{\"name\":\"a\",\"provider\":\"jail\",\"weight\":0}"
     ","
     "{\"name\":\"b\",\"provider\":\"jail\",\"weight\":0}]}}",
     "every weight is 0"},
    {"{\"experiment\":{\"name\":\"x\",\"arms\":[{\"name\":\"a\",\"provider\":\"jail\",\"weight\":1}"
     ","
     "{\"name\":\"a\",\"provider\":\"jail\",\"weight\":1}]}}",
     "experiment.arms: 'a' is there twice"},
    {"{\"breaker\":{\"failures\":0}}", "breaker.failures: 0 is not in the range 1 to 1000"},
    {"{\"breaker\":{\"failures\":1.5}}", "must be whole numbers"},
    {"{\"breaker\":{\"open_s\":60,\"open_max_s\":30}}", "open_max_s: 30 is less than open_s, 60"},
    {"{\"commands\":{\"reads\":\"none\"}}",
     "commands: 'reads' is not known: members are read, write"},
    {"{\"commands\":{\"read\":\"little\"}}", "commands.read"},
    {"{\"breaker\":{\"calls\":65}}", "breaker.calls: 65 is not in the range 1 to 64"},
};

static void test_mistakes_are_named_and_change_nothing(void **state)
{
    static struct router_rules before, after;
    (void)state;

    before = *rules_of("{\"default\":\"e2b\"}");
    for (unsigned i = 0; i < COUNT(mistakes); i++) {
        struct pd_err e = {.msg = ""};
        const char *text = mistakes[i].text;
        after = before;
        assert_int_equal(router_rules_parse(text, strlen(text), providers, PROVIDERS, &after, &e),
                         -1);
        if (e.code != PD_INVALID || !strstr(e.msg, mistakes[i].message))
            fail_msg("%s: %s", text, e.msg);
        assert_memory_equal(&before, &after, sizeof after);
    }
}

static void test_written_rules_read_the_same(void **state)
{
    static struct router_rules first;
    static const char text[] =
        "{\"default\":\"docker\",\"disabled\":[\"local\"],\"rules\":[{\"name\":\"r\",\"tenant\":"
        "\"t\","
        "\"user\":\"u\",\"template\":\"base\",\"provider\":\"e2b\",\"fallback\":[]},{\"name\":"
        "\"s\","
        "\"fallback\":[\"jail\",\"e2b\"]}],\"flags\":[{\"name\":\"f\",\"salt\":\"z\",\"provider\":"
        "\"jail\",\"percentage\":12.55}],\"experiment\":{\"name\":\"x\",\"arms\":[{\"name\":\"a\","
        "\"provider\":\"jail\",\"weight\":0.5},{\"name\":\"b\",\"provider\":\"e2b\",\"weight\":1}]}"
        ","
        "\"fallback\":[\"jail\"],\"allow_weaker\":true,\"breaker\":{\"open_s\":0.25}}";
    auto_buf out = BUF_INIT(ROUTER_TEXT_MAX);
    struct json j = JSON_INIT(&out);
    (void)state;

    first = *rules_of(text);
    assert_int_equal(first.flags[0].share, 1255);
    assert_int_equal(first.breaker.open_ns, NS_PER_S / 4);
    router_rules_json(&first, &j);
    assert_memory_equal(rules_of(buf_cstr(&out)), &first, sizeof first);
}

/* ---- older names ---- */

static const struct {
    const char *env[4];
    int share;        /* -1: refused; -2: no flag */
    const char *text; /* of the error, or why it is off */
} older[] = {
    {{NULL}, -2, ""},
    {{"USE_CLOUDRUN_JOBS_SANDBOX=false"}, -2, ""},
    {{"USE_CLOUDRUN_JOBS_SANDBOX="}, -2, ""},
    {{"USE_CLOUDRUN_JOBS_SANDBOX=true"}, 10000, "SANDBOX_GCP_PROJECT is not set"},
    {{"USE_CLOUDRUN_JOBS_SANDBOX=true", "SANDBOX_GCP_PROJECT="}, 10000, "SANDBOX_GCP_PROJECT"},
    {{"USE_CLOUDRUN_JOBS_SANDBOX=true", "SANDBOX_GCP_PROJECT=p"}, 10000, ""},
    {{"USE_CLOUDRUN_JOBS_SANDBOX=True", "SANDBOX_GCP_PROJECT=p"}, 10000, ""},
    {{"USE_CLOUDRUN_JOBS_SANDBOX=1", "SANDBOX_GCP_PROJECT=p", "CLOUDRUN_JOBS_ROLLOUT_PERCENTAGE=1"},
     100,
     ""},
    {{"USE_CLOUDRUN_JOBS_SANDBOX=1", "SANDBOX_GCP_PROJECT=p",
      "CLOUDRUN_JOBS_ROLLOUT_PERCENTAGE=2.5"},
     250,
     ""},
    {{"USE_CLOUDRUN_JOBS_SANDBOX=1", "SANDBOX_GCP_PROJECT=p", "CLOUDRUN_JOBS_ROLLOUT_PERCENTAGE=0"},
     0,
     ""},
    {{"CLOUDRUN_JOBS_ROLLOUT_PERCENTAGE=50"}, -2, ""},
    {{"USE_CLOUDRUN_JOBS_SANDBOX=ture"},
     -1,
     "USE_CLOUDRUN_JOBS_SANDBOX: 'ture' is neither true nor"},
    {{"USE_CLOUDRUN_JOBS_SANDBOX=1", "CLOUDRUN_JOBS_ROLLOUT_PERCENTAGE=101"},
     -1,
     "CLOUDRUN_JOBS_ROLLOUT_PERCENTAGE"},
    {{"CLOUDRUN_JOBS_ROLLOUT_PERCENTAGE=many"}, -1, "CLOUDRUN_JOBS_ROLLOUT_PERCENTAGE"},
};

static void test_older_names_are_flags(void **state)
{
    static struct router_rules rules;
    (void)state;

    for (unsigned i = 0; i < COUNT(older); i++) {
        struct pd_err e = {.msg = ""};
        rules = ROUTER_RULES_INIT;
        int r = older_names_read(older[i].env, providers, PROVIDERS, &rules, &e);
        assert_int_equal(r, older[i].share == -1 ? -1 : 0);
        if (r < 0 && !strstr(e.msg, older[i].text))
            fail_msg("row %u: %s", i, e.msg);
        assert_int_equal(rules.flag_count, older[i].share >= 0);
        if (older[i].share < 0)
            continue;
        assert_int_equal(rules.flags[0].share, older[i].share);
        if (older[i].text[0])
            assert_non_null(strstr(rules.flags[0].off, older[i].text));
        else
            assert_string_equal(rules.flags[0].off, "");
    }
}

static void test_an_older_flag_without_its_provider_is_off_and_says_so(void **state)
{
    static const char *const env[] = {"USE_CLOUDRUN_JOBS_SANDBOX=true", "SANDBOX_GCP_PROJECT=p",
                                      NULL};
    static struct router_rules rules;
    struct route_question q = {.tenant = "t"};
    struct decision route;
    struct pd_err e;
    auto_buf steps = BUF_INIT(4096);
    (void)state;

    rules = ROUTER_RULES_INIT;
    assert_int_equal(older_names_read(env, providers, 1, &rules, &e), 0);
    assert_int_equal(route_decide(&rules, providers, 1, &q, &route, &steps, &e), 0);
    assert_int_equal(route.by, ROUTE_BY_DEFAULT);
    assert_non_null(strstr(buf_cstr(&steps), "flag USE_CLOUDRUN_JOBS_SANDBOX: off, provider "
                                             "cloudrun is not configured here"));
}

/* The promise is 50 us for a decision; the worst that rules can make of it is far below, also with
 * sanitizers. */
static void test_a_decision_takes_less_than_50_us(void **state)
{
    static struct router_rules rules;
    struct route_question q = {.tenant = "tenant", .user = "a-user-with-a-long-name-0123456789"};
    struct decision route;
    struct pd_err e;
    uint64_t best = UINT64_MAX;
    (void)state;

    rules =
        *rules_of("{\"experiment\":{\"name\":\"x\",\"arms\":[{\"name\":\"a\",\"provider\":\"e2b\","
                  "\"weight\":1},{\"name\":\"b\",\"provider\":\"e2b\",\"weight\":1}]}}");
    rules.rule_count = ROUTER_RULES_MAX;
    for (unsigned i = 0; i < ROUTER_RULES_MAX; i++)
        snprintf(rules.rules[i].filter.tenant, sizeof rules.rules[i].filter.tenant, "tenant%u", i);
    rules.flag_count = ROUTER_FLAGS_MAX;
    for (unsigned i = 0; i < ROUTER_FLAGS_MAX; i++)
        snprintf(rules.flags[i].salt, sizeof rules.flags[i].salt, "salt%u", i);

    for (unsigned round = 0; round < 20; round++) {
        uint64_t began = clock_now();
        for (unsigned i = 0; i < 100; i++)
            assert_int_equal(route_decide(&rules, providers, PROVIDERS, &q, &route, NULL, &e), 0);
        uint64_t each = (clock_now() - began) / 100;
        best = each < best ? each : best;
    }
    print_message("# a decision with %u rules and %u flags: %u ns\n", ROUTER_RULES_MAX,
                  ROUTER_FLAGS_MAX, (unsigned)best);
    assert_true(best < 50000);
}

/* ---- images ---- */

/* A sandbox with an image is made by who takes images, one without by who needs none. */
static void test_images_choose_the_provider(void **state)
{
    static const struct {
        const char *rules, *asked;
        bool image;
        enum run_mode mode;
        const char *provider, *says; /* NULL: an error, with this in its text */
    } cases[] = {
        {"{}", NULL, false, MODE_NONE, "jail", "default"},
        {"{}", NULL, true, MODE_NONE, "docker", "jail takes no image"},
        {"{}", "auto", true, MODE_NONE, "docker", "jail takes no image"},
        {"{}", NULL, true, MODE_SANDBOX, "docker", "jail takes no image"},
        {"{}", NULL, true, MODE_AUTO, "docker", "mode auto"},
        {"{}", NULL, false, MODE_AUTO, "local", "mode auto"},
        {"{\"default\": \"docker\"}", NULL, false, MODE_NONE, "jail", "docker needs an image"},
        {"{\"default\": \"docker\"}", NULL, true, MODE_NONE, "docker", "default"},
        {"{\"default\": \"local\"}", NULL, true, MODE_NONE, "docker", "local takes no image"},
        /* What is switched off is not taken, and what a request names is not replaced. */
        {"{\"disabled\": [\"docker\"]}", NULL, true, MODE_NONE, "jail", "default"},
        {"{\"rules\": [{\"name\": \"r\", \"tenant\": \"t\", \"provider\": \"jail\"}]}", NULL, true,
         MODE_NONE, "jail", "rule r"},
        {"{}", "jail", true, MODE_NONE, "jail", "asked for"},
        {"{}", "docker", false, MODE_NONE, "docker", "asked for"},
        {"{\"disabled\": [\"docker\"]}", NULL, true, MODE_AUTO, NULL, "takes no image"},
    };
    (void)state;

    for (unsigned i = 0; i < COUNT(cases); i++) {
        struct route_provider list[PROVIDERS];
        struct route_question q = {
            .asked = cases[i].asked, .tenant = "t", .key = "k", .mode = cases[i].mode};
        struct decision d = {0};
        struct pd_err e = {.msg = ""};
        memcpy(list, providers, sizeof list);
        for (unsigned k = 0; k < PROVIDERS; k++) {
            bool takes = !strcmp(list[k].name, "docker");
            list[k].unfit = cases[i].image == takes ? NULL
                            : takes                 ? "needs an image"
                                                    : "takes no image";
        }
        int bad = route_decide(rules_of(cases[i].rules), list, PROVIDERS, &q, &d, NULL, &e);
        if ((bad < 0) != !cases[i].provider)
            fail_msg("case %u: %d %s", i, bad, e.msg);
        if (bad < 0 ? !strstr(e.msg, cases[i].says)
                    : strcmp(list[d.provider].name, cases[i].provider) != 0 ||
                          !strstr(d.reason, cases[i].says))
            fail_msg("case %u: %s, %s", i, list[d.provider].name, bad < 0 ? e.msg : d.reason);
        for (unsigned k = 0; k < d.next_count; k++)
            assert_null(list[d.next[k]].unfit);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_hash_is_murmur3),
        cmocka_unit_test(test_a_million_keys_give_the_share_within_a_fifth_of_a_percent),
        cmocka_unit_test(test_raising_a_percentage_only_adds_users),
        cmocka_unit_test(test_the_order_of_a_decision),
        cmocka_unit_test(test_no_fallback_weakens_isolation),
        cmocka_unit_test(test_arms_take_their_weights),
        cmocka_unit_test(test_commands_get_the_cheapest_that_will_do),
        cmocka_unit_test(test_steps_tell_what_was_seen),
        cmocka_unit_test(test_mistakes_are_named_and_change_nothing),
        cmocka_unit_test(test_written_rules_read_the_same),
        cmocka_unit_test(test_older_names_are_flags),
        cmocka_unit_test(test_an_older_flag_without_its_provider_is_off_and_says_so),
        cmocka_unit_test(test_a_decision_takes_less_than_50_us),
        cmocka_unit_test(test_images_choose_the_provider),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
