/* sudo: the same program as init, started as `sudo` inside a `dev` jail. */
#pragma once

int sudo_main(int argc, char **argv);
