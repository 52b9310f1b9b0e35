/* What emitted code is written in: W chains side by side, one in each lane of a vector.

   Defined before: SINGLE or nothing, for float or double; W, how many lanes; math.h, and which of its functions have
   vector versions. A truth value is 1 or 0. NaN and infinities go through everything as in torch: this file is never compiled with -ffast-math. */
#include <stdint.h>
#include <string.h>

#define IN static inline __attribute__((always_inline))

#ifdef SINGLE
typedef float T;
typedef int32_t I;
#define C(name) name##f
#define LGAMMA lgammaf_r
#define EPSILON 1.2e-7f
#else
typedef double T;
typedef int64_t I;
#define C(name) name
#define LGAMMA lgamma_r
#define EPSILON 2.3e-16
#endif

#if W == 1
typedef T V;
typedef I M;
#define LANE(x, l) (x)
IN V spread(T x) { return x; }
IN V choose(M m, V a, V b) { return m ? a : b; }
IN V truth(M m) { return m ? (T)1 : (T)0; }
#else
typedef T V __attribute__((vector_size(W * sizeof(T))));
typedef I M __attribute__((vector_size(W * sizeof(T))));
#define LANE(x, l) ((x)[l])
IN V spread(T x) { V r; for (int l = 0; l < W; l++) r[l] = x; return r; }
IN V choose(M m, V a, V b) { return (V)((m & (M)a) | (~m & (M)b)); }
IN V truth(M m) { return choose(m, spread(1), spread(0)); }
#endif

/* Arrays. With CHECKED each has its length: an access beyond it is recorded for fault(), and goes to the first element
   instead; and elements are NaN until they are written. */
/* Of numbers in a thread's own storage gcc takes an alignment for granted that it does not give them. */
#define ALIGNED __attribute__((aligned(64)))
#ifdef CHECKED
#include <stdio.h>
#define restrict
typedef struct { V *at; int64_t n; } Vectors;
typedef struct { const T *at; int64_t n; } Numbers;
typedef struct { const int64_t *at; int64_t n; } Integers;
static _Thread_local struct { const char *access; int64_t place, n; } outside;
static int64_t inside(int64_t place, int64_t n, const char *access) {
  if (place >= 0 && place < n) return place;
  if (!outside.access) outside.access = access, outside.place = place, outside.n = n;
  return 0;
}
static Vectors part(Vectors a, int64_t first, int64_t n, const char *access) {
  if (n <= 0 || (inside(first, a.n, access) == first && inside(first + n - 1, a.n, access) == first + n - 1))
    return (Vectors){a.at + first, n};
  return (Vectors){a.at, n < a.n ? n : a.n};
}
static Vectors unwritten(V *at, int64_t n) {
  for (int64_t i = 0; i < n; i++) at[i] = spread(NAN);
  return (Vectors){at, n};
}
/* The first access outside of an array since the last call; NULL if there was none. */
const char *fault(void) {
  static _Thread_local char text[240];
  if (!outside.access) return NULL;
  snprintf(text, sizeof text, "%s at place %ld of %ld", outside.access, (long)outside.place, (long)outside.n);
  outside.access = NULL;
  return text;
}
#define AT(array, i) ((array).at[inside(i, (array).n, #array "[" #i "]")])
#define PART(array, first, size) part(array, first, size, #array " + " #first)
#define INSIDE(i, size) inside(i, size, #i)
#define COPY(to, from, size) memcpy(PART(to, 0, size).at, PART(from, 0, size).at, sizeof(V) * (size))
#define ARRAY(array, size) V array##_[(size) ? (size) : 1]; Vectors array = unwritten(array##_, size)
#define LARGE_ARRAY(array, size) static _Thread_local ALIGNED ARRAY(array, size)
#define CONSTANT(kind, array, from, size) kind array = {from, size}
#else
typedef V *Vectors;
typedef const T *Numbers;
typedef const int64_t *Integers;
#define AT(array, i) (array)[i]
#define PART(array, first, size) ((array) + (first))
#define INSIDE(i, size) (i)
#define COPY(to, from, size) memcpy(to, from, sizeof(V) * (size))
#define ARRAY(array, size) V array[(size) ? (size) : 1]
#define LARGE_ARRAY(array, size) static _Thread_local ALIGNED ARRAY(array, size)
#define CONSTANT(kind, array, from, size) kind restrict array = from
#endif

/* An index that may count from the end; what is not an index of n elements, as NaN is not, becomes the nearest. */
IN int64_t within(T index, int64_t n) {
  if (!(index > -(T)n)) return 0;
  if (index >= (T)n) return n - 1;
  int64_t i = (int64_t)index;
  return i < 0 ? i + n : i;
}

IN int is_within(T index, int64_t n) { return index >= -(T)n && index < (T)n; }

/* A function of the C library in every lane; one call for all of them where the library has vector versions. */
#define EACH(name, body)                                                                  \
  IN V v_##name(V x) {                                                                    \
    T in[W], out[W]; V r;                                                                 \
    memcpy(in, &x, sizeof x);                                                             \
    _Pragma("omp simd") for (int l = 0; l < W; l++) { T a = in[l]; out[l] = (body); }     \
    memcpy(&r, out, sizeof r); return r;                                                  \
  }
#define EACH_OF_TWO(name, body)                                                           \
  IN V v_##name(V x, V y) {                                                               \
    T in[W], with[W], out[W]; V r;                                                        \
    memcpy(in, &x, sizeof x); memcpy(with, &y, sizeof y);                                 \
    _Pragma("omp simd") for (int l = 0; l < W; l++) { T a = in[l], b = with[l]; out[l] = (body); } \
    memcpy(&r, out, sizeof r); return r;                                                  \
  }
#define LIBRARY(name) EACH(name, C(name)(a))

/* ---- numbers ------------------------------------------------------------------------------------------------- */

IN V v_sqrt(V x) {
  V r;
#if W == 1
  r = C(sqrt)(x);
#else
  for (int l = 0; l < W; l++) r[l] = C(sqrt)(x[l]);
#endif
  return r;
}
LIBRARY(exp) LIBRARY(expm1) LIBRARY(log) LIBRARY(log1p) LIBRARY(log2) LIBRARY(log10) LIBRARY(exp2)
LIBRARY(sin) LIBRARY(cos) LIBRARY(tan) LIBRARY(asin) LIBRARY(acos) LIBRARY(atan)
LIBRARY(sinh) LIBRARY(cosh) LIBRARY(tanh) LIBRARY(asinh) LIBRARY(acosh) LIBRARY(atanh)
LIBRARY(erf) LIBRARY(erfc) LIBRARY(floor) LIBRARY(ceil) LIBRARY(trunc) LIBRARY(rint)
EACH_OF_TWO(pow, C(pow)(a, b))
EACH_OF_TWO(atan2, C(atan2)(a, b))
EACH_OF_TWO(fmod, C(fmod)(a, b))

IN V v_abs(V x) { return choose(x < spread(0), -x, x) + spread(0); }
IN V v_isnan(V x) { return truth(x != x); }
IN V v_isinf(V x) { return truth(v_abs(x) == spread(INFINITY)); }
IN V v_isfinite(V x) { return truth((x - x) == (x - x)); }
IN V v_square(V x) { return x * x; }
IN V v_cube(V x) { return x * x * x; }
IN V v_max(V a, V b) { return choose((a > b) | (a != a), a, b); }
IN V v_min(V a, V b) { return choose((a < b) | (a != a), a, b); }
IN V v_sign(V x) { return truth(x > spread(0)) - truth(x < spread(0)); }
IN V v_and(V a, V b) { return truth((a != spread(0)) & (b != spread(0))); }
IN V v_or(V a, V b) { return truth((a != spread(0)) | (b != spread(0))); }
IN V v_where(V c, V a, V b) { return choose(c != spread(0), a, b); }
IN V v_sigmoid(V x) { return spread(1) / (spread(1) + v_exp(-x)); }
IN V v_relu(V x) { return choose(x <= spread(0), spread(0), x); }
IN V v_remainder(V a, V b) {
  V r = v_fmod(a, b);
  return choose((r != spread(0)) & ((r < spread(0)) != (b < spread(0))), r + b, r);
}

/* ---- matrices, row by row ------------------------------------------------------------------------------------ */

/* PA = LU in place, by rows of the largest pivot in each lane; pivots counted from 1, as LAPACK does. Of a singular
   matrix the factors are NaN unless they are asked for; then a column without a pivot is left as it is, zero. */
IN void lu_factor(Vectors a, Vectors pivots, int n, int may_be_singular) {
  for (int c = 0; c < n; c++) {
    V largest = v_abs(AT(a, c * n + c)), row = spread(c);
    for (int r = c + 1; r < n; r++) {
      V size = v_abs(AT(a, r * n + c));
      M larger = size > largest;
      largest = choose(larger, size, largest);
      row = choose(larger, spread(r), row);
    }
    AT(pivots, c) = row + spread(1);
    for (int r = c + 1; r < n; r++) {
      M exchanged = row == spread(r);
      for (int q = 0; q < n; q++) {
        V above = AT(a, c * n + q), below = AT(a, r * n + q);
        AT(a, c * n + q) = choose(exchanged, below, above);
        AT(a, r * n + q) = choose(exchanged, above, below);
      }
    }
    V pivot = AT(a, c * n + c), inverse = spread(1) / pivot;
    if (may_be_singular) inverse = choose(pivot == spread(0), spread(0), inverse);
    for (int r = c + 1; r < n; r++) {
      V factor = AT(a, r * n + c) * inverse;
      AT(a, r * n + c) = factor;
      for (int q = c + 1; q < n; q++) AT(a, r * n + q) -= factor * AT(a, c * n + q);
    }
  }
}
IN void exchange_row(Vectors b, V pivot, int c, int n, int m) {
  for (int r = c + 1; r < n; r++) {
    M exchanged = pivot == spread(r + 1);
    for (int q = 0; q < m; q++) {
      V above = AT(b, c * m + q), below = AT(b, r * m + q);
      AT(b, c * m + q) = choose(exchanged, below, above);
      AT(b, r * m + q) = choose(exchanged, above, below);
    }
  }
}
/* L X = B or U X = B in place; element (i, j) of the triangle stands at AT(a, i * down + j * right). */
IN void solve_lower(Vectors a, int down, int right, Vectors b, int n, int m, int unit) {
  for (int r = 0; r < n; r++) {
    for (int k = 0; k < r; k++)
      for (int q = 0; q < m; q++) AT(b, r * m + q) -= AT(a, r * down + k * right) * AT(b, k * m + q);
    if (!unit) {
      V inverse = spread(1) / AT(a, r * down + r * right);
      for (int q = 0; q < m; q++) AT(b, r * m + q) *= inverse;
    }
  }
}
IN void solve_upper(Vectors a, int down, int right, Vectors b, int n, int m, int unit) {
  for (int r = n - 1; r >= 0; r--) {
    for (int k = r + 1; k < n; k++)
      for (int q = 0; q < m; q++) AT(b, r * m + q) -= AT(a, r * down + k * right) * AT(b, k * m + q);
    if (!unit) {
      V inverse = spread(1) / AT(a, r * down + r * right);
      for (int q = 0; q < m; q++) AT(b, r * m + q) *= inverse;
    }
  }
}
IN void lu_solve(Vectors a, Vectors pivots, Vectors b, int n, int m, int transposed) {
  if (!transposed) {
    for (int c = 0; c < n; c++) exchange_row(b, AT(pivots, c), c, n, m);
    solve_lower(a, n, 1, b, n, m, 1);
    solve_upper(a, n, 1, b, n, m, 0);
  } else {
    solve_lower(a, 1, n, b, n, m, 0);
    solve_upper(a, 1, n, b, n, m, 1);
    for (int c = n - 1; c >= 0; c--) exchange_row(b, AT(pivots, c), c, n, m);
  }
}
/* Where a matrix is not positive definite, the root is NaN, and so is all that follows. */
IN void cholesky(Vectors a, int n) {
  for (int c = 0; c < n; c++) {
    V d = AT(a, c * n + c);
    for (int k = 0; k < c; k++) d -= AT(a, c * n + k) * AT(a, c * n + k);
    d = choose(d > spread(0), v_sqrt(d), spread(NAN));
    AT(a, c * n + c) = d;
    V inverse = spread(1) / d;
    for (int r = c + 1; r < n; r++) {
      V s = AT(a, r * n + c);
      for (int k = 0; k < c; k++) s -= AT(a, r * n + k) * AT(a, c * n + k);
      AT(a, r * n + c) = s * inverse;
      AT(a, c * n + r) = spread(0);
    }
  }
}
IN void multiply(Vectors a, Vectors b, Vectors out, int n) {
  for (int i = 0; i < n; i++)
    for (int j = 0; j < n; j++) {
      V s = spread(0);
      for (int k = 0; k < n; k++) s += AT(a, i * n + k) * AT(b, k * n + j);
      AT(out, i * n + j) = s;
    }
}
/* Taylor's series after halving, then squares; in each lane as often as its own norm asks. */
IN void matrix_exp(Vectors a, Vectors out, Vectors term, Vectors next, int n) {
  V norm = spread(0);
  for (int i = 0; i < n; i++) {
    V row = spread(0);
    for (int j = 0; j < n; j++) row += v_abs(AT(a, i * n + j));
    norm = v_max(norm, row);
  }
  V scale = spread(1), halvings = spread(0);
  int most = 0;
  for (int s = 0; s < 64; s++) {
    M large = (norm * scale > spread(0.5)) & (norm < spread(INFINITY));
    int any = 0;
    for (int l = 0; l < W; l++) any |= LANE(large, l) != 0;
    if (!any) break;
    scale = choose(large, scale * spread(0.5), scale);
    halvings = choose(large, halvings + spread(1), halvings);
    most = s + 1;
  }
  for (int i = 0; i < n; i++)
    for (int j = 0; j < n; j++) AT(out, i * n + j) = AT(term, i * n + j) = spread(i == j);
  for (int k = 1; k < 15; k++) {
    multiply(term, a, next, n);
    for (int i = 0; i < n * n; i++) { AT(term, i) = AT(next, i) * scale / spread(k); AT(out, i) += AT(term, i); }
  }
  for (int s = 0; s < most; s++) {
    multiply(out, out, next, n);
    M again = halvings > spread(s);
    for (int i = 0; i < n * n; i++) AT(out, i) = choose(again, AT(next, i), AT(out, i));
  }
}
/* Jacobi's rotations until nothing is left beside the diagonal; eigenvalues in rising order, vectors in columns. */
IN void eigh(Vectors a, Vectors values, Vectors vectors, int n) {
  for (int i = 0; i < n; i++)
    for (int j = 0; j < n; j++) AT(vectors, i * n + j) = spread(i == j);
  for (int sweep = 0; sweep < 30; sweep++) {
    V off = spread(0), all = spread(0);
    for (int i = 0; i < n; i++)
      for (int j = 0; j < n; j++) {
        all += AT(a, i * n + j) * AT(a, i * n + j);
        if (i != j) off += AT(a, i * n + j) * AT(a, i * n + j);
      }
    M left = off > all * spread(EPSILON * EPSILON);
    int any = 0;
    for (int l = 0; l < W; l++) any |= LANE(left, l) != 0;
    if (!any) break;
    for (int p = 0; p < n; p++)
      for (int q = p + 1; q < n; q++) {
        V apq = AT(a, p * n + q), twice = spread(2) * apq, gap = AT(a, q * n + q) - AT(a, p * n + p);
        V root = v_abs(gap) + v_sqrt(gap * gap + twice * twice);
        V t = choose(root == spread(0), spread(0), choose(gap < spread(0), -twice, twice) / root);
        V c = spread(1) / v_sqrt(spread(1) + t * t), s = t * c;
        for (int k = 0; k < n; k++) {
          V x = AT(a, k * n + p), y = AT(a, k * n + q);
          AT(a, k * n + p) = c * x - s * y;
          AT(a, k * n + q) = s * x + c * y;
        }
        for (int k = 0; k < n; k++) {
          V x = AT(a, p * n + k), y = AT(a, q * n + k);
          AT(a, p * n + k) = c * x - s * y;
          AT(a, q * n + k) = s * x + c * y;
          x = AT(vectors, k * n + p), y = AT(vectors, k * n + q);
          AT(vectors, k * n + p) = c * x - s * y;
          AT(vectors, k * n + q) = s * x + c * y;
        }
      }
  }
  for (int i = 0; i < n; i++) AT(values, i) = AT(a, i * n + i);
  for (int i = 0; i < n; i++)
    for (int j = 0; j + 1 < n - i; j++) {
      M exchanged = AT(values, j) > AT(values, j + 1);
      V x = AT(values, j), y = AT(values, j + 1);
      AT(values, j) = choose(exchanged, y, x);
      AT(values, j + 1) = choose(exchanged, x, y);
      for (int k = 0; k < n; k++) {
        V u = AT(vectors, k * n + j), w = AT(vectors, k * n + j + 1);
        AT(vectors, k * n + j) = choose(exchanged, w, u);
        AT(vectors, k * n + j + 1) = choose(exchanged, u, w);
      }
    }
}
