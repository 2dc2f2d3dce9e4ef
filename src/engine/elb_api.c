/* Forms and answers of Elastic Load Balancing v2: one target at a time. */
#include "engine/elb_api.h"

#include "base/banned.h"
#include "base/err.h"
#include "engine/http.h"
#include "engine/xml_text.h"

#include <string.h>

void elb_target_form(struct buf *out, const char *action, const char *group, const char *address,
                     unsigned port)
{
    buf_printf(out, "Action=%s&Version=2015-12-01&TargetGroupArn=", action);
    http_escape(out, group);
    buf_puts(out, "&Targets.member.1.Id=");
    http_escape(out, address);
    buf_printf(out, "&Targets.member.1.Port=%u", port);
}

int elb_read_health(const char *xml, size_t len, enum elb_health *ret, char *why, size_t size,
                    struct pd_err *e)
{
    static const struct {
        const char *state;
        enum elb_health means;
    } all[] = {{"initial", ELB_COMING},         {"unavailable", ELB_COMING},
               {"healthy", ELB_HEALTHY},        {"unhealthy", ELB_SICK},
               {"unused", ELB_UNUSED},          {"draining", ELB_GONE},
               {"unhealthy.draining", ELB_GONE}};
    char state[32], reason[64];

    if (!xml_text(xml, len, "State", state, sizeof state))
        return pd_fail(e, PD_PROTOCOL, "the load balancer does not tell a target's health");
    xml_text(xml, len, "Description", why, size);
    xml_text(xml, len, "Reason", reason, sizeof reason);

    *ret = ELB_COMING;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!strcmp(state, all[i].state))
            *ret = all[i].means;
    if (*ret == ELB_UNUSED && !strcmp(reason, "Target.NotRegistered"))
        *ret = ELB_GONE;
    return 0;
}
