// Integers: wide products, carries, division, bit fiddling, dot products of bytes.

extern "C" __global__ void wide_products(const unsigned long long *x, const unsigned long long *y,
                                         unsigned long long *out) {
    int i = threadIdx.x, n = blockDim.x;
    out[i] = __umul64hi(x[i], y[i]);
    out[n + i] = __mul64hi((long long)x[i], (long long)y[i]);
    out[2 * n + i] = x[i] * y[i];
    out[3 * n + i] = __umulhi((unsigned int)x[i], (unsigned int)y[i]);
    out[4 * n + i] = (unsigned int)__mulhi((int)x[i], (int)y[i]);
    out[5 * n + i] = (unsigned int)__mul24((int)x[i], (int)y[i]);
    out[6 * n + i] = __umul24((unsigned int)x[i], (unsigned int)y[i]);
    out[7 * n + i] = (unsigned int)__usad((unsigned int)x[i], (unsigned int)y[i], 9u);
}

// 128-bit sum, difference and product as chains of carries; four words each.
extern "C" __global__ void carries(const uint4 *x, const uint4 *y, uint4 *sum, uint4 *difference,
                                   uint4 *product) {
    int i = threadIdx.x;
    uint4 a = x[i], b = y[i], s, d, p;
    asm("add.cc.u32 %0, %4, %8;\n\t"
        "addc.cc.u32 %1, %5, %9;\n\t"
        "addc.cc.u32 %2, %6, %10;\n\t"
        "addc.u32 %3, %7, %11;"
        : "=r"(s.x), "=r"(s.y), "=r"(s.z), "=r"(s.w)
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b.x), "r"(b.y), "r"(b.z), "r"(b.w));
    asm("sub.cc.u32 %0, %4, %8;\n\t"
        "subc.cc.u32 %1, %5, %9;\n\t"
        "subc.cc.u32 %2, %6, %10;\n\t"
        "subc.u32 %3, %7, %11;"
        : "=r"(d.x), "=r"(d.y), "=r"(d.z), "=r"(d.w)
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b.x), "r"(b.y), "r"(b.z), "r"(b.w));
    asm("mul.lo.u32 %0, %4, %6;\n\t"
        "mul.hi.u32 %1, %4, %6;\n\t"
        "mad.lo.cc.u32 %1, %5, %6, %1;\n\t"
        "madc.hi.u32 %2, %5, %6, 0;\n\t"
        "mad.lo.cc.u32 %1, %4, %7, %1;\n\t"
        "madc.hi.cc.u32 %2, %4, %7, %2;\n\t"
        "addc.u32 %3, 0, 0;\n\t"
        "mad.lo.cc.u32 %2, %5, %7, %2;\n\t"
        "madc.hi.u32 %3, %5, %7, %3;"
        : "=&r"(p.x), "=&r"(p.y), "=&r"(p.z), "=&r"(p.w)
        : "r"(a.x), "r"(a.y), "r"(b.x), "r"(b.y));
    sum[i] = s;
    difference[i] = d;
    product[i] = p;
}

extern "C" __global__ void wide_words(const unsigned long long *x, const unsigned long long *y,
                                      ulonglong2 *out) {
    int i = threadIdx.x;
    unsigned __int128 p = (unsigned __int128)x[i] * y[i] + ((unsigned __int128)y[i] << 70) - x[i];
    out[i] = make_ulonglong2((unsigned long long)p, (unsigned long long)(p >> 64));
}

extern "C" __global__ void divisions(const int *x, const int *y, const long long *u,
                                     const long long *v, int *out, long long *wide) {
    int i = threadIdx.x, n = blockDim.x;
    out[i] = x[i] / y[i];
    out[n + i] = x[i] % y[i];
    out[2 * n + i] = (unsigned int)x[i] / (unsigned int)y[i];
    out[3 * n + i] = (unsigned int)x[i] % (unsigned int)y[i];
    out[4 * n + i] = x[i] / 10;
    out[5 * n + i] = (short)x[i] / (short)(y[i] | 1);
    wide[i] = u[i] / v[i];
    wide[n + i] = u[i] % v[i];
    wide[2 * n + i] = (unsigned long long)u[i] / (unsigned long long)v[i];
    wide[3 * n + i] = (unsigned long long)u[i] % (unsigned long long)v[i];
    wide[4 * n + i] = u[i] / 1000000007;
}

extern "C" __global__ void bits(const unsigned int *x, const unsigned long long *y, unsigned int *out) {
    int i = threadIdx.x, n = blockDim.x;
    unsigned int v = x[i];
    unsigned long long w = y[i];
    out[i] = __popc(v) | __popcll(w) << 8;
    out[n + i] = __clz(v) | __clzll(w) << 8;
    out[2 * n + i] = __ffs(v) | __ffsll(w) << 8;
    out[3 * n + i] = __brev(v) ^ (unsigned int)(__brevll(w) >> 7);
    out[4 * n + i] = __byte_perm(v, (unsigned int)w, 0x6152);
    out[5 * n + i] = __funnelshift_l(v, (unsigned int)w, i);
    out[6 * n + i] = __funnelshift_r(v, (unsigned int)w, i);
    out[7 * n + i] = __funnelshift_lc(v, (unsigned int)w, i + 20);
    out[8 * n + i] = v << (i & 31) | v >> (32 - i & 31);
    out[9 * n + i] = (int)v >> (i & 31);
    out[10 * n + i] = __hadd((int)v, (int)w) ^ __rhadd((int)v, (int)w);
    out[11 * n + i] = (v & (unsigned int)w) | (~v & 0x12345678u);
}

extern "C" __global__ void dot_products(const int *x, const int *y, int *out) {
    int i = threadIdx.x, n = blockDim.x;
    out[i] = __dp4a(x[i], y[i], 100);
    out[n + i] = __dp4a((unsigned int)x[i], (unsigned int)y[i], 7u);
    out[2 * n + i] = __dp2a_lo(x[i], y[i], -5);
    out[3 * n + i] = __dp2a_hi((unsigned int)x[i], (unsigned int)y[i], 3u);
}

// Four bytes in a word at once.
extern "C" __global__ void bytes_at_once(const unsigned int *x, const unsigned int *y,
                                         unsigned int *out) {
    int i = threadIdx.x, n = blockDim.x;
    out[i] = __vadd4(x[i], y[i]);
    out[n + i] = __vmaxs4(x[i], y[i]);
    out[2 * n + i] = __vabsdiffu4(x[i], y[i]);
    out[3 * n + i] = __vcmpgtu4(x[i], y[i]);
    out[4 * n + i] = __vsubss2(x[i], y[i]);
    out[5 * n + i] = __vsadu4(x[i], y[i]);
}

extern "C" __global__ void narrow(const signed char *a, const short *b, const unsigned char *c,
                                  const unsigned short *d, signed char *a_out, short *b_out,
                                  unsigned char *c_out, unsigned short *d_out) {
    int i = threadIdx.x;
    a_out[i] = a[i] * 3 + b[i];
    b_out[i] = b[i] - a[i] * c[i];
    c_out[i] = c[i] + d[i] / 3;
    d_out[i] = d[i] * d[i] + (a[i] < b[i] ? 5 : c[i] > 100 ? 7 : 9);
}
