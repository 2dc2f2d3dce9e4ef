/* A policy: what was read is judged by every question that can be asked; each rule is written and
 * read back as itself. */
#include "base/banned.h"
#include "base/err.h"
#include "gate/rules.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_rule(const struct rule *r)
{
    char text[RULES_TEXT_MAX], again[RULES_TEXT_MAX], name[RULES_NAME_MAX + 1];
    struct rule back;

    rule_text(r, text);
    if (rule_parse(text, &back, name, NULL) < 0)
        abort();
    rule_text(&back, again);
    if (strcmp(text, again) != 0)
        abort();
    /* A rule has what it names. */
    if (r->kind == RULE_NAME && !rule_has_name(r, r->name))
        abort();
    if (r->kind == RULE_SUFFIX && rule_has_name(r, r->name))
        abort();
    if (r->kind == RULE_NETWORK && !cidr_has(&r->net, r->net.net))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct egress_policy *p;
    struct ip a = {.bytes = {[10] = 0xff, 0xff, 1, 1, 1, 1}};

    if (egress_parse((const char *)data, size, &p, NULL) < 0)
        return 0;

    bool off = !p->layer_count;
    for (unsigned i = 0; i < p->layer_count; i++) {
        off |= p->layers[i].mode == EGRESS_OFF;
        for (unsigned k = 0; k < p->layers[i].allow_count; k++)
            check_rule(&p->layers[i].allow[k]);
        for (unsigned k = 0; k < p->layers[i].deny_count; k++)
            check_rule(&p->layers[i].deny[k]);
    }

    struct verdict named = egress_judge(p, "a.example", a, 443);
    struct verdict plain = egress_judge(p, NULL, a, 443);
    if (off && (named.how != JUDGED_NO || plain.how != JUDGED_NO || egress_may_ask(p, "a.example")))
        abort();
    if (plain.how == JUDGED_BY_NAME ||
        (named.how == JUDGED_BY_NAME && !egress_may_ask(p, "a.example")))
        abort();

    /* The cloud's own address is dialled only if the operator has named a network with it. */
    struct ip metadata = {.bytes = {[10] = 0xff, 0xff, 169, 254, 169, 254}};
    if (!p->private_count && !egress_dial_refused(p, NULL, metadata, 80, false))
        abort();
    for (unsigned i = 0; i < p->host_count; i++)
        (void)egress_host_address(p, &p->hosts[i]);
    egress_free_policy(p);
    return 0;
}
