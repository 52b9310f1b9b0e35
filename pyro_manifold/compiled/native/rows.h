/* Lanes along the rows of tall matrices: a vector holds W consecutive rows of a column. The rows after the last one, which
   fill up the last vector, are 0 in every array. */

/* Numbers that are the same in all lanes, side by side: a product reads them from fewer lines of the cache. */
#define PACKED(array, size) static _Thread_local ALIGNED T array##_[(size) ? (size) : 1]; Numbers array = NUMBERS(array##_, size)
#ifdef CHECKED
#define NUMBERS(array, size) {array, size}
#else
#define NUMBERS(array, size) array
#endif

IN V vector_at(const T *from) { V x; memcpy(&x, from, sizeof x); return x; }
IN V filled_up(V x, int rows) {
  for (int l = rows; l < W; l++) LANE(x, l) = 0;
  return x;
}
IN V total(V x) {
  T sum = 0;
  for (int l = 0; l < W; l++) sum += LANE(x, l);
  return spread(sum);
}
/* Row-major n×p numbers to vectors of rows, and back; number by number, which is faster than lane by lane. */
typedef T Lane __attribute__((may_alias));
static __attribute__((noinline)) void load_rows(Vectors to, const T *restrict from, int n, int p) {
  for (int j = 0; j < p; j++) AT(to, (n - 1) / W * p + j) = spread(0);
  Lane *lanes = (Lane *)&AT(to, 0);
  for (int i = 0; i < n; i++)
    for (int j = 0; j < p; j++) lanes[((int64_t)(i / W) * p + j) * W + i % W] = from[(int64_t)i * p + j];
}
static __attribute__((noinline)) void store_rows(T *restrict to, Vectors from, int n, int p) {
  (void)AT(from, (n - 1) / W * p + p - 1);
  const Lane *lanes = (const Lane *)&AT(from, 0);
  for (int i = 0; i < n; i++)
    for (int j = 0; j < p; j++) to[(int64_t)i * p + j] = lanes[((int64_t)(i / W) * p + j) * W + i % W];
}

/* ---- small matrices, whose entries are equal in all lanes: solved with lanes along columns ------------------- */

#define LARGEST 2048 /* vectors on the stack */
#define VECTORS_OF(n) (((n) + W - 1) / W)
static void packed(Vectors from, Lane *to, int n, int m) {
  int w = VECTORS_OF(m) * W;
  for (int i = 0; i < n; i++)
    for (int j = 0; j < w; j++) to[i * w + j] = j < m ? LANE(AT(from, i * m + j), 0) : 0;
}
static void spread_out(const Lane *from, Vectors to, int n, int m) {
  int w = VECTORS_OF(m) * W;
  for (int i = 0; i < n; i++)
    for (int j = 0; j < m; j++) AT(to, i * m + j) = spread(from[i * w + j]);
}
static void exchange_rows(V *x, V *y, int w) {
  for (int v = 0; v < w; v++) { V z = x[v]; x[v] = y[v]; y[v] = z; }
}
static __attribute__((noinline)) void lu_factor_of_one(Vectors a, Vectors pivots, int n, int may_be_singular) {
  int w = VECTORS_OF(n);
  if (n * w > LARGEST) { lu_factor(a, pivots, n, may_be_singular); return; }
  V x[n * w];
  Lane *t = (Lane *)x;
  M lane;
  for (int l = 0; l < W; l++) LANE(lane, l) = l;
  packed(a, t, n, n);
  for (int c = 0; c < n; c++) {
    int row = c;
    for (int r = c + 1; r < n; r++)
      if (C(fabs)(t[r * w * W + c]) > C(fabs)(t[row * w * W + c])) row = r;
    AT(pivots, c) = spread(row + 1);
    if (row != c) exchange_rows(x + c * w, x + row * w, w);
    T pivot = t[c * w * W + c], inverse = may_be_singular && pivot == 0 ? 0 : 1 / pivot;
    M after = lane > (lane - lane + (c % W));
    for (int r = c + 1; r < n; r++) {
      T factor = t[r * w * W + c] * inverse;
      int v = c / W;
      x[r * w + v] = choose(after, x[r * w + v] - spread(factor) * x[c * w + v], x[r * w + v]);
      t[r * w * W + c] = factor;
      for (v++; v < w; v++) x[r * w + v] -= spread(factor) * x[c * w + v];
    }
  }
  spread_out(t, a, n, n);
}
static __attribute__((noinline)) void lu_solve_of_one(Vectors a, Vectors pivots, Vectors b, int n, int m, int transposed) {
  int w = VECTORS_OF(m);
  if (transposed || n * w > LARGEST) { lu_solve(a, pivots, b, n, m, transposed); return; }
  V x[n * w];
  packed(b, (Lane *)x, n, m);
  for (int c = 0; c < n; c++) {
    int row = (int)LANE(AT(pivots, c), 0) - 1;
    if (row != c) exchange_rows(x + c * w, x + row * w, w);
  }
  for (int c = 0; c < n; c++)
    for (int r = c + 1; r < n; r++)
      for (int v = 0; v < w; v++) x[r * w + v] -= AT(a, r * n + c) * x[c * w + v];
  for (int c = n - 1; c >= 0; c--) {
    V inverse = spread(1) / AT(a, c * n + c);
    for (int v = 0; v < w; v++) x[c * w + v] *= inverse;
    for (int r = 0; r < c; r++)
      for (int v = 0; v < w; v++) x[r * w + v] -= AT(a, r * n + c) * x[c * w + v];
  }
  spread_out((Lane *)x, b, n, m);
}
#define lu_factor lu_factor_of_one
#define lu_solve lu_solve_of_one
