#include "cli/cli.h"

const char doctor_usage[] = "usage: paddock doctor [--json]\n";

int cmd_doctor(int argc, char **argv)
{
    (void)argc, (void)argv;
    return 125;
}

int cmd_probe(int argc, char **argv)
{
    (void)argc, (void)argv;
    return 125;
}
