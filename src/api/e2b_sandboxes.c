#include "api/e2b.h"

#include "base/banned.h"
#include "base/json.h"

int e2b_get(struct call *c, struct pd_err *e)
{
    (void)e;
    auto_buf out = BUF_INIT(4096);
    struct json j = JSON_INIT(&out);
    struct session_info i;
    session_get(c->session, &i);
    json_open(&j, '{');
    json_member_cstr(&j, "sandboxID", i.id);
    json_close(&j, '}');
    return call_json(c, 200, &out);
}
