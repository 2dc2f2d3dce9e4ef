#include "base/banned.h"

int main(void)
{
    return 0;
}
