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
/* Row-major n×p numbers to vectors of rows, and back. */
static __attribute__((noinline)) void load_rows(Vectors to, const T *restrict from, int n, int p) {
  for (int i = 0; i < n; i += W)
    for (int j = 0; j < p; j++) {
      V x = spread(0);
      if (i + W <= n) for (int l = 0; l < W; l++) LANE(x, l) = from[(int64_t)(i + l) * p + j];
      else for (int l = 0; l < n - i; l++) LANE(x, l) = from[(int64_t)(i + l) * p + j];
      AT(to, i / W * p + j) = x;
    }
}
static __attribute__((noinline)) void store_rows(T *restrict to, Vectors from, int n, int p) {
  for (int i = 0; i < n; i += W)
    for (int j = 0; j < p; j++) {
      V x = AT(from, i / W * p + j);
      for (int l = 0; l < W && i + l < n; l++) to[(int64_t)(i + l) * p + j] = LANE(x, l);
    }
}
