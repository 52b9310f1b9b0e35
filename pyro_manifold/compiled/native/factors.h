/* Orthogonal factors of small matrices, after lanes.h. An m x n matrix stands row by row. */

/* A = QR in place, by Householder's reflections I - tau v v' as LAPACK has them: R stands on and above the diagonal, v
   below it, with a 1 on the diagonal that is not written. R has diagonal elements of the other sign than what they are
   made of; where nothing stands below them there is no reflection, and they stay. */
IN void qr(Vectors a, Vectors taus, int m, int n) {
  for (int c = 0; c < n && c < m; c++) {
    V largest = spread(0), below = spread(0), alpha = AT(a, c * n + c);
    for (int r = c; r < m; r++) largest = v_max(largest, v_abs(AT(a, r * n + c)));
    V unit = choose(largest == spread(0), spread(1), largest);  /* so that no square is too large, or too small */
    for (int r = c + 1; r < m; r++) below += v_square(AT(a, r * n + c) / unit);
    V norm = unit * v_sqrt(below + v_square(alpha / unit));
    M still = below == spread(0);
    V beta = choose(still, alpha, choose(alpha < spread(0), norm, -norm));
    V tau = choose(still, spread(0), (beta - alpha) / beta);
    for (int r = c + 1; r < m; r++) {
      V part = AT(a, r * n + c) / (alpha - beta);
      AT(a, r * n + c) = choose(still, spread(0), part);
    }
    for (int j = c + 1; j < n; j++) {
      V s = AT(a, c * n + j);
      for (int r = c + 1; r < m; r++) s += AT(a, r * n + c) * AT(a, r * n + j);
      s *= tau;
      AT(a, c * n + j) -= s;
      for (int r = c + 1; r < m; r++) AT(a, r * n + j) -= AT(a, r * n + c) * s;
    }
    AT(a, c * n + c) = beta;
    AT(taus, c) = tau;
  }
}
/* The first columns of the product of so many reflections, m x columns; the v stand as qr leaves them. */
IN void product_of_reflections(Vectors a, Vectors taus, Vectors q, int m, int n, int count, int columns) {
  for (int i = 0; i < m; i++)
    for (int j = 0; j < columns; j++) AT(q, i * columns + j) = spread(i == j);
  for (int c = count - 1; c >= 0; c--)
    for (int j = 0; j < columns; j++) {
      V s = AT(q, c * columns + j);
      for (int r = c + 1; r < m; r++) s += AT(a, r * n + c) * AT(q, r * columns + j);
      s *= AT(taus, c);
      AT(q, c * columns + j) -= s;
      for (int r = c + 1; r < m; r++) AT(q, r * columns + j) -= AT(a, r * n + c) * s;
    }
}
IN void rotate_columns(Vectors a, int rows, int n, int p, int q, V c, V s) {
  for (int r = 0; r < rows; r++) {
    V x = AT(a, r * n + p), y = AT(a, r * n + q);
    AT(a, r * n + p) = c * x - s * y;
    AT(a, r * n + q) = s * x + c * y;
  }
}
IN void exchange_columns(Vectors a, int rows, int n, int p, M exchanged) {
  for (int r = 0; r < rows; r++) {
    V x = AT(a, r * n + p), y = AT(a, r * n + p + 1);
    AT(a, r * n + p) = choose(exchanged, y, x);
    AT(a, r * n + p + 1) = choose(exchanged, x, y);
  }
}
/* One sweep of Jacobi's rotations from the right, by which columns become orthogonal; whether any lane needs more. */
IN int orthogonalize(Vectors a, Vectors v, int m, int n) {
  int left = 0;
  for (int p = 0; p < n; p++)
    for (int q = p + 1; q < n; q++) {
      V alpha = spread(0), beta = spread(0), gamma = spread(0);
      for (int r = 0; r < m; r++) {
        V x = AT(a, r * n + p), y = AT(a, r * n + q);
        alpha += x * x, beta += y * y, gamma += x * y;
      }
      M turned = v_abs(gamma) > spread(m * EPSILON) * v_sqrt(alpha) * v_sqrt(beta);
      for (int l = 0; l < W; l++) left |= LANE(turned, l) != 0;
      V gap = beta - alpha, twice = spread(2) * gamma, root = v_abs(gap) + v_sqrt(gap * gap + twice * twice);
      V t = choose(turned, choose(gap < spread(0), -twice, twice) / root, spread(0));
      V c = spread(1) / v_sqrt(spread(1) + t * t), s = t * c;
      rotate_columns(a, m, n, p, q, c, s);
      rotate_columns(v, n, n, p, q, c, s);
    }
  return left;
}
/* A = U S V', m >= n, with U m x columns and V n x n; singular values fall. What Jacobi's rotations leave, U S, has a QR
   factorisation with a diagonal R, whose Q is orthogonal whatever the rank. A is overwritten. */
IN void svd(Vectors a, Vectors taus, Vectors u, Vectors values, Vectors v, int m, int n, int columns) {
  V unit = spread(0);
  for (int i = 0; i < m * n; i++) unit = v_max(unit, v_abs(AT(a, i)));
  unit = choose(unit == spread(INFINITY), spread(NAN), choose(unit == spread(0), spread(1), unit));
  for (int i = 0; i < m * n; i++) AT(a, i) /= unit;
  for (int i = 0; i < n; i++)
    for (int j = 0; j < n; j++) AT(v, i * n + j) = spread(i == j) + (unit - unit);
  for (int sweep = 0; sweep < 30 && orthogonalize(a, v, m, n); sweep++);
  for (int j = 0; j < n; j++) {
    V square = spread(0);
    for (int r = 0; r < m; r++) square += v_square(AT(a, r * n + j));
    AT(values, j) = v_sqrt(square) * unit;
  }
  for (int i = 0; i < n; i++)
    for (int j = 0; j + 1 < n - i; j++) {
      V x = AT(values, j), y = AT(values, j + 1);
      M exchanged = x < y;
      AT(values, j) = choose(exchanged, y, x);
      AT(values, j + 1) = choose(exchanged, x, y);
      exchange_columns(a, m, n, j, exchanged);
      exchange_columns(v, n, n, j, exchanged);
    }
  qr(a, taus, m, n);
  product_of_reflections(a, taus, u, m, n, n, columns);
  for (int j = 0; j < n; j++)
    for (int r = 0; r < m; r++) AT(u, r * columns + j) *= choose(AT(a, j * n + j) < spread(0), spread(-1), spread(1));
}
