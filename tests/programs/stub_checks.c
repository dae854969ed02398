/* What the header small.h, of --head-dim 64 --dtype f16, says of arguments; needs no device. */
#include "small.h"

static small_args args(void)
{
    small_args a;
    memset(&a, 0, sizeof a);
    a.seq_q = 120, a.seq_k = 185, a.heads = 4, a.group = 2, a.kv_heads = 2, a.batch = 2;
    a.softmax_scale = 0.125f;
    small_dense_strides(&a);
    a.Q = 0x1000, a.K = 0x2000, a.V = 0x3000, a.O = 0x4000;
    return a;
}

static void refused(small_args a)
{
    char why[200];
    puts(small_check(&a, why, sizeof why) ? why : "not refused");
}

int main(void)
{
    small_args a = args();
    small_kernel kernel = {NULL, NULL};
    uint64_t grid[3];
    printf("right: %d\n", small_check(&a, NULL, 0));
    small_grid(&a, grid);
    printf("bytes %llu %llu, grid %llu\n", (unsigned long long)small_Q_bytes(&a), (unsigned long long)small_K_bytes(&a), (unsigned long long)grid[0]);
    a = args(), a.seq_q = 0, refused(a);
    a = args(), a.group = 3, refused(a);
    a = args(), a.seq_q = 1 << 30, a.batch = 2000, refused(a);
    a = args(), a.Q = 0, refused(a);
    a = args(), a.Q = 0x1008, refused(a);
    a = args(), a.K_row_stride = 65, refused(a);
    a = args(), a.O_row_stride = 0, refused(a);
    a = args(), a.seq_k = 0, a.K = a.V = 0;
    printf("without keys: %d\n", small_check(&a, NULL, 0));
    a = args(), a.K_batch_stride = 0;
    printf("keys that repeat: %d\n", small_check(&a, NULL, 0));
    a = args(), a.Q_row_stride = -64;
    printf("backwards: %d\n", small_check(&a, NULL, 0) || small_Q_bytes(&a) != 2 * 4 * 120 * 64 * 2);
    a.group = 0;
    printf("launched: %d\n", (int)small_launch(&kernel, &a, NULL));
    return 0;
}
