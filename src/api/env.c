/* The environment and the working directory of a sandbox, which its commands start with. */
#include "api/call.h"
#include "api/handlers.h"

#include "base/banned.h"
#include "base/json.h"

#define ENV_JSON_MAX (1u << 20)

static int answer_env(struct call *c, struct pd_err *e)
{
    auto_buf env = BUF_INIT(ENV_JSON_MAX);
    auto_buf out = BUF_INIT(2 * ENV_JSON_MAX);
    struct json j = JSON_INIT(&out);
    char cwd[SPEC_PATH_MAX];

    if (session_get_env(c->session, &env, cwd, sizeof cwd) < 0)
        return pd_fail(e, PD_CAPACITY, "the environment is too large");

    json_open(&j, '{');
    json_key(&j, "env");
    buf_put(&out, env.data, env.len);
    j.need_comma = 1;
    json_member_cstr(&j, "cwd", cwd);
    json_close(&j, '}');
    return call_json(c, 200, &out);
}

int env_get(struct call *c, struct pd_err *e)
{
    return call_no_query(c, e) < 0 ? -1 : answer_env(c, e);
}

int env_put(struct call *c, struct pd_err *e)
{
    auto_buf body = BUF_INIT(API_BODY_MAX);
    auto_fields f = {0};
    const char *cwd = NULL;
    struct msg_list_writer set = MSG_LIST_WRITER_INIT, unset = MSG_LIST_WRITER_INIT;

    if (call_no_query(c, e) < 0 || call_body(c, &body, &f, 0, e) < 0)
        return -1;

    fields_env(&f, "env", FIELD_OPTIONAL, &set, &unset);
    fields_str(&f, "cwd", FIELD_OPTIONAL, 1, SPEC_PATH_MAX - 1, &cwd);
    if (cwd && cwd[0] != '/')
        fields_refuse(&f, "cwd", "'%.100s' must be an absolute path", cwd);

    int r = call_finish(c, &f, e);
    struct msg_list to_set = msg_list_of(&set), to_unset = msg_list_of(&unset);
    if (r == 0)
        r = session_set_env(c->session, &to_set, &to_unset, cwd, e);

    msg_list_writer_done(&set);
    msg_list_writer_done(&unset);
    return r < 0 ? -1 : answer_env(c, e);
}
