/* The smallest payload: what is left is the jail's own cost. */
int main(void)
{
    return 0;
}
