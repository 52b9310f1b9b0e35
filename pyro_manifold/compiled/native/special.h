/* Special functions, after lanes.h: to the last digits wherever they are finite, and infinite or NaN where torch's are.

   Those that go lane by lane compute in double for float too. */

#define ALONE(name)                                                                       \
  IN V v_##name(V x) { V r; for (int l = 0; l < W; l++) LANE(r, l) = name##_of(LANE(x, l)); return r; }

/* ---- short ones ---------------------------------------------------------------------------------------------- */

EACH(signbit, signbit(a) ? 1 : 0)
EACH_OF_TWO(copysign, C(copysign)(a, b))
EACH_OF_TWO(hypot, C(hypot)(a, b))

IN V v_frac(V x) { return x - v_trunc(x); }
IN V v_fmax(V a, V b) { return choose((a >= b) | (b != b), a, b); }
IN V v_fmin(V a, V b) { return choose((a <= b) | (b != b), a, b); }
IN V v_heaviside(V x, V at_zero) { return choose(x == spread(0), at_zero, truth(x > spread(0))); }
IN V v_sinc(V x) {
  V angle = spread(M_PI) * x;
  return choose(x == spread(0), spread(1), v_sin(angle) / angle);
}
IN V v_lerp(V a, V b, V weight) {
  V gap = b - a;
  return choose(v_abs(weight) < spread(0.5), a + weight * gap, b - gap * (spread(1) - weight));
}
#define SUM_OF_POWERS(name, power, log_of_one_more)                                       \
  IN V name(V a, V b) {                                                                   \
    V larger = v_max(a, b), smaller = v_min(a, b);                                        \
    M infinite = (larger == smaller) & (v_abs(larger) == spread(INFINITY));               \
    return choose(infinite, larger, larger + log_of_one_more(power(smaller - larger)));   \
  }
IN V log2_of_one_more(V x) { return spread(M_LOG2E) * v_log1p(x); }
SUM_OF_POWERS(v_logaddexp, v_exp, v_log1p)
SUM_OF_POWERS(v_logaddexp2, v_exp2, log2_of_one_more)
IN V no_times(V x, V y, V product) { return choose(y != y, y, choose(x == spread(0), spread(0), product)); }
IN V v_xlogy(V x, V y) { return no_times(x, y, x * v_log(y)); }
IN V v_xlog1py(V x, V y) { return no_times(x, y, x * v_log1p(y)); }
IN V v_entr(V x) {
  V outside = choose(x < spread(0), spread(-INFINITY), x);
  return choose(x > spread(0), -x * v_log(x), outside);
}
/* Quotients rounded to whole numbers, as Python's //. */
IN V v_floor_divide(V a, V b) {
  V rest = v_fmod(a, b), whole = (a - rest) / b;
  whole -= truth((rest != spread(0)) & ((b < spread(0)) != (rest < spread(0))));
  V below = v_floor(whole);
  below += truth(whole - below > spread(0.5));
  V rounded = choose(whole != spread(0), below, v_copysign(spread(0), a / b));
  return choose(b == spread(0), a / b, rounded);
}

/* ---- the error function and the normal distribution ---------------------------------------------------------- */

/* e^(x^2) erfc(x), by a series in 1 / x^2 far away; x^2 is taken with the digits that its rounding loses. */
static double scaled_erfc(double x) {
  if (x < -27) return INFINITY;
  double y = fabs(x), square = y * y, value = 1;
  double grown = exp(square) * (1 + fma(y, y, -square));
  if (y < 10) value = grown * erfc(y);
  else {
    for (int k = 13; k > 0; k--) value = 1 - (2 * k - 1) * 0.5 / square * value;
    value *= M_2_SQRTPI / 2 / y;
  }
  return x < 0 ? 2 * grown - value : value;
}
static T erfcx_of(T x) { return scaled_erfc(x); }
static T log_ndtr_of(T x) {
  double t = x * M_SQRT1_2;
  return x < 1 ? log(scaled_erfc(-t) / 2) - t * t : log1p(-erfc(t) / 2);
}
/* The y > 0 with erf(y) = x and erfc(y) = rest: Winitzki's estimate, then Halley's method. */
static double inverse_of_erf(double x, double rest) {
  double s = x < 0.5 ? log1p(-x * x) : log(rest * (1 + x));
  double a = 4.330746750799873 + s / 2, y = sqrt(sqrt(a * a - s / 0.147) - a);
  for (int k = 0; k < 3; k++) {
    double excess = x < 0.5 ? (erf(y) - x) * exp(y * y) : exp(y * y + log(rest)) - scaled_erfc(y);
    double newton = excess * 0.886226925452758;
    y -= newton / (1 + y * newton);
  }
  return y;
}
static T erfinv_of(T given) {
  double x = fabs((double)given);
  if (!(x < 1)) return x == 1 ? given * INFINITY : NAN;
  return copysign(x == 0 ? 0 : inverse_of_erf(x, 1 - x), given);
}
static T ndtri_of(T given) {
  double p = given, rest = 2 * fmin(p, 1 - p);
  if (!(p > 0 && p < 1)) return p == 0 ? -INFINITY : p == 1 ? INFINITY : NAN;
  return p == 0.5 ? 0 : copysign(M_SQRT2 * inverse_of_erf(fabs(2 * p - 1), rest), p - 0.5);
}
ALONE(erfcx) ALONE(log_ndtr) ALONE(erfinv) ALONE(ndtri)

/* ---- the gamma function and its relatives -------------------------------------------------------------------- */

static T lgamma_of(T x) { int sign; return LGAMMA(x, &sign); }
static T digamma_of(T x) {
  if (x == 0) return signbit(x) ? INFINITY : -INFINITY;
  double y = x, shifted = 0, reflected = 0;
  if (y < 0) {
    if (y == floor(y)) return NAN;
    reflected = -M_PI / tan(M_PI * (y - rint(y)));
    y = 1 - y;
  }
  for (; y < 10; y += 1) shifted -= 1 / y;
  if (!(y < 1e17)) return log(y) + reflected;
  double z = 1 / (y * y);
  double tail = z * (1 / 12.0 - z * (1 / 120.0 - z * (1 / 252.0 - z * (1 / 240.0 - z * (1 / 132.0 - z * (691 / 32760.0 - z / 12))))));
  return log(y) - 0.5 / y - tail + shifted + reflected;
}
static double to_minus(double q, double s) {
  return s == 1 ? 1 / q : s == 2 ? 1 / (q * q) : s == 3 ? 1 / (q * q * q) : pow(q, -s);
}
/* Hurwitz's zeta(s, q), s > 1 and q > 0, by the formula of Euler and Maclaurin; the numbers are (2k)! / B_2k. */
static double zeta_of_positive(double s, double q) {
  static const double divisors[] = {
    12, -720, 30240, -1209600, 47900160, -1892437580.3183791606, 74724249600, -2950130727918.1642244,
    116467828143500.67249, -4597978722407472.6105, 181521054019435467.73, -7166165256175667011.3,
  };
  double sum = 0, w = q;
  for (int k = 0; k < 9 || w <= 9; k++, w += 1) sum += to_minus(w, s);
  double last = to_minus(w, s), factor = s * last / w;
  sum += to_minus(w, s - 1) / (s - 1) + last / 2;
  for (int k = 0; k < 12 && factor != 0; k++) {
    sum += factor / divisors[k];
    factor *= (s + 2 * k + 1) / w * ((s + 2 * k + 2) / w);
  }
  return sum;
}
/* For negative q the terms before zero, and those after it, are sums of their own. */
static double zeta(double s, double q) {
  if (s < 1) return NAN;
  if (s == 1 || (q <= 0 && q == floor(q))) return INFINITY;
  if (isinf(q)) return NAN;
  if (isinf(s)) return q < 1 ? INFINITY : q == 1 ? 1 : NAN;
  if (!(q < 0)) return zeta_of_positive(s, q);
  if (s != floor(s)) return NAN;
  double part = -q - floor(-q), sign = fmod(s, 2) == 0 ? 1 : -1;
  double before = -q < 1 ? to_minus(part, s) : zeta_of_positive(s, part) - zeta_of_positive(s, 1 - q);
  return zeta_of_positive(s, 1 - part) + sign * before;
}
/* The derivative of digamma of order n > 0. */
static double polygamma_of(double n, double x) {
  if (n == 1 && isinf(x)) return x > 0 ? 0 : NAN;
  return (fmod(n, 2) == 1 ? 1 : -1) * tgamma(n + 1) * zeta(n + 1, x);
}
IN V v_zeta(V s, V q) { V r; for (int l = 0; l < W; l++) LANE(r, l) = zeta(LANE(s, l), LANE(q, l)); return r; }
IN V v_polygamma(V n, V x) {
  V r;
  for (int l = 0; l < W; l++) LANE(r, l) = polygamma_of(LANE(n, l), LANE(x, l));
  return r;
}
ALONE(digamma) ALONE(lgamma)

/* ---- Bessel's modified functions of the first kind, by Chebyshev's polynomials (Moshier's Cephes) --------------- */

/* e^-|x| I0(x): of x / 2 - 2 up to 8, and times sqrt(x), of 32 / x - 2, beyond. */
static const T NEAR_0[30] = {
    -4.4153416464793395e-18, 3.3307945188222384e-17, -2.431279846547955e-16, 1.715391285555133e-15,
    -1.1685332877993451e-14, 7.676185498604936e-14, -4.856446783111929e-13, 2.95505266312964e-12,
    -1.726826291441556e-11, 9.675809035373237e-11, -5.189795601635263e-10, 2.6598237246823866e-9,
    -1.300025009986248e-8, 6.046995022541919e-8, -2.670793853940612e-7, 1.1173875391201037e-6,
    -4.4167383584587505e-6, 1.6448448070728896e-5, -5.754195010082104e-5, 0.00018850288509584165,
    -0.0005763755745385824, 0.0016394756169413357, -0.004324309995050576, 0.010546460394594998,
    -0.02373741480589947, 0.04930528423967071, -0.09490109704804764, 0.17162090152220877, -0.3046826723431984,
    0.6767952744094761,
};
static const T FAR_0[25] = {
    -7.233180487874754e-18, -4.830504485944182e-18, 4.46562142029676e-17, 3.461222867697461e-17,
    -2.8276239805165836e-16, -3.425485619677219e-16, 1.7725601330565263e-15, 3.8116806693526224e-15,
    -9.554846698828307e-15, -4.150569347287222e-14, 1.54008621752141e-14, 3.8527783827421426e-13,
    7.180124451383666e-13, -1.7941785315068062e-12, -1.3215811840447713e-11, -3.1499165279632416e-11,
    1.1889147107846439e-11, 4.94060238822497e-10, 3.3962320257083865e-9, 2.266668990498178e-8,
    2.0489185894690638e-7, 2.8913705208347567e-6, 6.889758346916825e-5, 0.0033691164782556943,
    0.8044904110141088,
};
/* e^-|x| I1(x), the first divided by x. */
static const T NEAR_1[29] = {
    2.7779141127610464e-18, -2.111421214358166e-17, 1.5536319577362005e-16, -1.1055969477353862e-15,
    7.600684294735408e-15, -5.042185504727912e-14, 3.223793365945575e-13, -1.9839743977649436e-12,
    1.1736186298890901e-11, -6.663489723502027e-11, 3.625590281552117e-10, -1.8872497517228294e-9,
    9.381537386495773e-9, -4.445059128796328e-8, 2.0032947535521353e-7, -8.568720264695455e-7,
    3.4702513081376785e-6, -1.3273163656039436e-5, 4.781565107550054e-5, -0.00016176081582589674,
    0.0005122859561685758, -0.0015135724506312532, 0.004156422944312888, -0.010564084894626197,
    0.024726449030626516, -0.05294598120809499, 0.1026436586898471, -0.17641651835783406, 0.25258718644363365,
};
static const T FAR_1[25] = {
    7.517296310842105e-18, 4.414348323071708e-18, -4.6503053684893586e-17, -3.209525921993424e-17,
    2.96262899764595e-16, 3.3082023109209285e-16, -1.8803547755107825e-15, -3.8144030724370075e-15,
    1.0420276984128802e-14, 4.272440016711951e-14, -2.1015418427726643e-14, -4.0835511110921974e-13,
    -7.198551776245908e-13, 2.0356285441470896e-12, 1.4125807436613782e-11, 3.2526035830154884e-11,
    -1.8974958123505413e-11, -5.589743462196584e-10, -3.835380385964237e-9, -2.6314688468895196e-8,
    -2.512236237870209e-7, -3.882564808877691e-6, -0.00011058893876262371, -0.009761097491361469,
    0.7785762350182801,
};
IN V chebyshev(V x, const T *coefficients, int n) {
  V b0 = spread(coefficients[0]), b1 = spread(0), b2 = b1;
  for (int k = 1; k < n; k++) { b2 = b1; b1 = b0; b0 = x * b1 - b2 + spread(coefficients[k]); }
  return spread(0.5) * (b0 - b2);
}
#define CHEBYSHEV(x, coefficients) chebyshev(x, coefficients, sizeof coefficients / sizeof *coefficients)
IN V v_i0e(V x) {
  V y = v_abs(x), far = CHEBYSHEV(spread(32) / y - spread(2), FAR_0) / v_sqrt(y);
  return choose(y <= spread(8), CHEBYSHEV(y * spread(0.5) - spread(2), NEAR_0), far);
}
IN V v_i1e(V x) {
  V y = v_abs(x), far = CHEBYSHEV(spread(32) / y - spread(2), FAR_1) / v_sqrt(y);
  V value = choose(y <= spread(8), CHEBYSHEV(y * spread(0.5) - spread(2), NEAR_1) * y, far);
  return choose(x < spread(0), -value, value);
}
IN V v_i0(V x) { return v_exp(v_abs(x)) * v_i0e(x); }
IN V v_i1(V x) { return v_exp(v_abs(x)) * v_i1e(x); }
