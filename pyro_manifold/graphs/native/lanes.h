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

/* An index that may count from the end; nothing outside an array is ever read or written. */
IN int64_t within(T index, int64_t n) {
  int64_t i = (int64_t)index;
  if (i < 0) i += n;
  return i < 0 ? 0 : i < n ? i : n - 1;
}

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

static T digamma_of(T x) {
  if (x == 0) return signbit(x) ? INFINITY : -INFINITY;
  double y = x, shifted = 0, reflected = 0;
  if (y < 0) {
    if (y == floor(y)) return NAN;
    reflected = -M_PI / tan(M_PI * (y - trunc(y)));
    y = 1 - y;
  }
  for (; y < 10; y += 1) shifted -= 1 / y;
  if (!(y < 1e17)) return log(y) + reflected;
  double z = 1 / (y * y);
  double tail = z * (1 / 12.0 - z * (1 / 120.0 - z * (1 / 252.0 - z * (1 / 240.0 - z * (1 / 132.0 - z * (691 / 32760.0 - z / 12))))));
  return log(y) - 0.5 / y - tail + shifted + reflected;
}
/* Winitzki's estimate, then Halley's method. */
static T erfinv_of(T given) {
  double x = fabs((double)given);
  if (!(x < 1)) return x == 1 ? given * INFINITY : NAN;
  double s = log1p(-x * x), a = 4.330746750799873 + s / 2, y = sqrt(sqrt(a * a - s / 0.147) - a);
  for (int k = 0; k < 3; k++) {
    double excess = x > 0.5 ? (1 - x) - erfc(y) : erf(y) - x;
    double newton = excess * 0.886226925452758 * exp(y * y);
    y -= newton / (1 + y * newton);
  }
  return copysign(y, given);
}
static T lgamma_of(T x) { int sign; return LGAMMA(x, &sign); }
#define ALONE(name)                                                                       \
  IN V v_##name(V x) { V r; for (int l = 0; l < W; l++) LANE(r, l) = name##_of(LANE(x, l)); return r; }
ALONE(digamma) ALONE(erfinv) ALONE(lgamma)

/* ---- matrices, row by row ------------------------------------------------------------------------------------ */

/* PA = LU in place, by rows of the largest pivot in each lane; pivots counted from 1, as LAPACK does. */
IN void lu_factor(V *a, V *pivots, int n) {
  for (int c = 0; c < n; c++) {
    V largest = v_abs(a[c * n + c]), row = spread(c);
    for (int r = c + 1; r < n; r++) {
      V size = v_abs(a[r * n + c]);
      M larger = size > largest;
      largest = choose(larger, size, largest);
      row = choose(larger, spread(r), row);
    }
    pivots[c] = row + spread(1);
    for (int r = c + 1; r < n; r++) {
      M exchanged = row == spread(r);
      for (int q = 0; q < n; q++) {
        V above = a[c * n + q], below = a[r * n + q];
        a[c * n + q] = choose(exchanged, below, above);
        a[r * n + q] = choose(exchanged, above, below);
      }
    }
    V inverse = spread(1) / a[c * n + c];
    for (int r = c + 1; r < n; r++) {
      V factor = a[r * n + c] * inverse;
      a[r * n + c] = factor;
      for (int q = c + 1; q < n; q++) a[r * n + q] -= factor * a[c * n + q];
    }
  }
}
IN void exchange_row(V *b, V pivot, int c, int n, int m) {
  for (int r = c + 1; r < n; r++) {
    M exchanged = pivot == spread(r + 1);
    for (int q = 0; q < m; q++) {
      V above = b[c * m + q], below = b[r * m + q];
      b[c * m + q] = choose(exchanged, below, above);
      b[r * m + q] = choose(exchanged, above, below);
    }
  }
}
/* L X = B or U X = B in place; element (i, j) of the triangle stands at a[i * down + j * right]. */
IN void solve_lower(const V *a, int down, int right, V *b, int n, int m, int unit) {
  for (int r = 0; r < n; r++) {
    for (int k = 0; k < r; k++)
      for (int q = 0; q < m; q++) b[r * m + q] -= a[r * down + k * right] * b[k * m + q];
    if (!unit) {
      V inverse = spread(1) / a[r * down + r * right];
      for (int q = 0; q < m; q++) b[r * m + q] *= inverse;
    }
  }
}
IN void solve_upper(const V *a, int down, int right, V *b, int n, int m, int unit) {
  for (int r = n - 1; r >= 0; r--) {
    for (int k = r + 1; k < n; k++)
      for (int q = 0; q < m; q++) b[r * m + q] -= a[r * down + k * right] * b[k * m + q];
    if (!unit) {
      V inverse = spread(1) / a[r * down + r * right];
      for (int q = 0; q < m; q++) b[r * m + q] *= inverse;
    }
  }
}
IN void lu_solve(const V *a, const V *pivots, V *b, int n, int m, int transposed) {
  if (!transposed) {
    for (int c = 0; c < n; c++) exchange_row(b, pivots[c], c, n, m);
    solve_lower(a, n, 1, b, n, m, 1);
    solve_upper(a, n, 1, b, n, m, 0);
  } else {
    solve_lower(a, 1, n, b, n, m, 0);
    solve_upper(a, 1, n, b, n, m, 1);
    for (int c = n - 1; c >= 0; c--) exchange_row(b, pivots[c], c, n, m);
  }
}
/* Where a matrix is not positive definite, the root is NaN, and so is all that follows. */
IN void cholesky(V *a, int n) {
  for (int c = 0; c < n; c++) {
    V d = a[c * n + c];
    for (int k = 0; k < c; k++) d -= a[c * n + k] * a[c * n + k];
    d = choose(d > spread(0), v_sqrt(d), spread(NAN));
    a[c * n + c] = d;
    V inverse = spread(1) / d;
    for (int r = c + 1; r < n; r++) {
      V s = a[r * n + c];
      for (int k = 0; k < c; k++) s -= a[r * n + k] * a[c * n + k];
      a[r * n + c] = s * inverse;
      a[c * n + r] = spread(0);
    }
  }
}
IN void multiply(const V *a, const V *b, V *out, int n) {
  for (int i = 0; i < n; i++)
    for (int j = 0; j < n; j++) {
      V s = spread(0);
      for (int k = 0; k < n; k++) s += a[i * n + k] * b[k * n + j];
      out[i * n + j] = s;
    }
}
/* Taylor's series after halving, then squares; in each lane as often as its own norm asks. */
IN void matrix_exp(const V *a, V *out, V *term, V *next, int n) {
  V norm = spread(0);
  for (int i = 0; i < n; i++) {
    V row = spread(0);
    for (int j = 0; j < n; j++) row += v_abs(a[i * n + j]);
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
    for (int j = 0; j < n; j++) out[i * n + j] = term[i * n + j] = spread(i == j);
  for (int k = 1; k < 15; k++) {
    multiply(term, a, next, n);
    for (int i = 0; i < n * n; i++) { term[i] = next[i] * scale / spread(k); out[i] += term[i]; }
  }
  for (int s = 0; s < most; s++) {
    multiply(out, out, next, n);
    M again = halvings > spread(s);
    for (int i = 0; i < n * n; i++) out[i] = choose(again, next[i], out[i]);
  }
}
/* Jacobi's rotations until nothing is left beside the diagonal; eigenvalues in rising order, vectors in columns. */
IN void eigh(V *a, V *values, V *vectors, int n) {
  for (int i = 0; i < n; i++)
    for (int j = 0; j < n; j++) vectors[i * n + j] = spread(i == j);
  for (int sweep = 0; sweep < 30; sweep++) {
    V off = spread(0), all = spread(0);
    for (int i = 0; i < n; i++)
      for (int j = 0; j < n; j++) {
        all += a[i * n + j] * a[i * n + j];
        if (i != j) off += a[i * n + j] * a[i * n + j];
      }
    M left = off > all * spread(EPSILON * EPSILON);
    int any = 0;
    for (int l = 0; l < W; l++) any |= LANE(left, l) != 0;
    if (!any) break;
    for (int p = 0; p < n; p++)
      for (int q = p + 1; q < n; q++) {
        V apq = a[p * n + q], twice = spread(2) * apq, gap = a[q * n + q] - a[p * n + p];
        V root = v_abs(gap) + v_sqrt(gap * gap + twice * twice);
        V t = choose(root == spread(0), spread(0), choose(gap < spread(0), -twice, twice) / root);
        V c = spread(1) / v_sqrt(spread(1) + t * t), s = t * c;
        for (int k = 0; k < n; k++) {
          V x = a[k * n + p], y = a[k * n + q];
          a[k * n + p] = c * x - s * y;
          a[k * n + q] = s * x + c * y;
        }
        for (int k = 0; k < n; k++) {
          V x = a[p * n + k], y = a[q * n + k];
          a[p * n + k] = c * x - s * y;
          a[q * n + k] = s * x + c * y;
          x = vectors[k * n + p], y = vectors[k * n + q];
          vectors[k * n + p] = c * x - s * y;
          vectors[k * n + q] = s * x + c * y;
        }
      }
  }
  for (int i = 0; i < n; i++) values[i] = a[i * n + i];
  for (int i = 0; i < n; i++)
    for (int j = 0; j + 1 < n - i; j++) {
      M exchanged = values[j] > values[j + 1];
      V x = values[j], y = values[j + 1];
      values[j] = choose(exchanged, y, x);
      values[j + 1] = choose(exchanged, x, y);
      for (int k = 0; k < n; k++) {
        V u = vectors[k * n + j], w = vectors[k * n + j + 1];
        vectors[k * n + j] = choose(exchanged, w, u);
        vectors[k * n + j + 1] = choose(exchanged, u, w);
      }
    }
}
