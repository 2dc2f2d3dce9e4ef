/* paddock agent: the coding agent in the terminal, which is the program paddock-agent of the Python
 * package. It is looked for in PATH and executed in place of this one, with the same arguments. */
#include "base/banned.h"
#include "base/err.h"
#include "cli/cli.h"

#include <errno.h>

const char agent_usage[] =
    "usage: paddock agent [OPTIONS] [TASK...]\n"
    "       paddock agent list\n"
    "       paddock agent reset --agent NAME [--target OTHER] [--dry-run]\n\n"
    "A coding agent in the terminal whose tools work in a sandbox.\n\n"
    "  -p, --print                do one task, print the answer, leave\n"
    "  --json                     likewise, with every event as a line of JSON\n"
    "  --agent NAME               whose memory, skills and conversations\n"
    "  --model PROVIDER:NAME      anthropic:NAME or openai:NAME\n"
    "  --model-timeout SECONDS    how long the model may be silent\n"
    "  --window TOKENS            how much the model can take\n"
    "  --max-turns N              answers of the model to one message\n"
    "  --put DIR                  copy this directory to /workspace\n"
    "  --get                      with -p: bring changes back at the end, unasked\n"
    "  --auto-approve             ask for nothing that stays in the sandbox\n"
    "  --allow PATTERN            do not ask for commands such as 'pytest*'\n"
    "  --sandbox paddock|none     none: work on this machine, here\n"
    "  --yes-on-this-machine      allow --auto-approve without a sandbox\n"
    "  --template NAME            what the sandbox is made of\n"
    "  -c, --continue             go on with the last conversation\n"
    "  -r, --resume ID            go on with this conversation\n"
    "  --target OTHER             of reset: take over memory and skills of this agent\n"
    "  --dry-run                  of reset: only say what would be removed\n"
    "  --version                  print the version\n";

int cmd_agent(int argc, char **argv)
{
    struct pd_err e;
    (void)argc;

    argv[0] = (char *)"paddock-agent";
    execvp(argv[0], argv);

    if (errno == ENOENT)
        pd_fail(&e, PD_NOT_FOUND,
                "the program paddock-agent is not in PATH; it is in the Python package: "
                "pip install \"$(scripts/python-wheel)\" in a checkout of Paddock");
    else
        pd_fail_sys(&e, "start paddock-agent");
    return cli_fail(&e);
}
