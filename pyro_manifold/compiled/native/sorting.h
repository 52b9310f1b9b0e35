/* Order along a row of n numbers, together with the place that each comes from. NaN is the largest number, as in torch.

   Places are only ever exchanged: whatever a comparison says of NaN, they stay those from 0 to n - 1. */

/* Whether a comes after b, from small to large or the other way; tied are those of which neither does. */
IN M comes_after(V a, V b, int descending) {
  M larger = (a > b) | ((a != a) & (b == b)), smaller = (a < b) | ((b != b) & (a == a));
  return descending ? smaller : larger;
}
IN void in_order(Vectors x, Vectors places, int i, int j, int descending) {
  V a = AT(x, i), b = AT(x, j), of_a = AT(places, i), of_b = AT(places, j);
  M exchanged = comes_after(a, b, descending) | (~comes_after(b, a, descending) & (of_a > of_b));
  AT(x, i) = choose(exchanged, b, a);
  AT(x, j) = choose(exchanged, a, b);
  AT(places, i) = choose(exchanged, of_b, of_a);
  AT(places, j) = choose(exchanged, of_a, of_b);
}
IN void number_places(Vectors places, int n) {
  for (int i = 0; i < n; i++) AT(places, i) = spread(i);
}
/* Batcher's network of exchanges, the same for all lanes; ties stand in the order of their places. */
IN void exchange_in_network(Vectors x, Vectors places, int n, int descending) {
  int top = 1;
  while (top < n) top *= 2;
  for (int p = top / 2; p > 0; p /= 2) {
    for (int q = top / 2, r = 0, d = p; ; d = q - p, q /= 2, r = p) {
      for (int block = r; block < n - d; block += 2 * p)
        for (int i = block; i < block + p && i < n - d; i++) in_order(x, places, i, i + d, descending);
      if (q == p) break;
    }
  }
}
static void sort(Vectors x, Vectors places, int n, int descending) {
  number_places(places, n);
  if (descending) exchange_in_network(x, places, n, 1);
  else exchange_in_network(x, places, n, 0);
}

/* ---- parts of a row in order, lane by lane -------------------------------------------------------------------------

   Which of several tied numbers is among the first k is for the algorithm to decide: these are torch's, exchange by
   exchange, and those of the C++ library (GNU's) that it calls. */

typedef struct { Vectors x, places; int lane, descending; } Row;
typedef struct { T x, place; } Entry;

static int nan_first(T a, T b) { return a > b || (a != a && b == b); }
static int entry_before(const Row *w, Entry a, Entry b) {
  return w->descending ? nan_first(a.x, b.x) : nan_first(b.x, a.x);
}
static Entry entry_at(const Row *w, int i) {
  return (Entry){LANE(AT(w->x, i), w->lane), LANE(AT(w->places, i), w->lane)};
}
static void put_entry(const Row *w, int i, Entry e) {
  LANE(AT(w->x, i), w->lane) = e.x;
  LANE(AT(w->places, i), w->lane) = e.place;
}
static int is_before(const Row *w, int i, int j) { return entry_before(w, entry_at(w, i), entry_at(w, j)); }
static void exchange(const Row *w, int i, int j) {
  Entry a = entry_at(w, i), b = entry_at(w, j);
  put_entry(w, i, b);
  put_entry(w, j, a);
}
static void insertion_sort(const Row *w, int first, int last) {
  for (int i = first + 1; i < last; i++) {
    Entry moved = entry_at(w, i);
    int j = i;
    for (; j > first && entry_before(w, moved, entry_at(w, j - 1)); j--) put_entry(w, j, entry_at(w, j - 1));
    put_entry(w, j, moved);
  }
}
static void sift(const Row *w, int first, int hole, int n, Entry moved) {
  int top = hole, child = hole;
  while (child < (n - 1) / 2) {
    child = 2 * (child + 1);
    if (is_before(w, first + child, first + child - 1)) child--;
    put_entry(w, first + hole, entry_at(w, first + child));
    hole = child;
  }
  if (n % 2 == 0 && child == (n - 2) / 2) {
    child = 2 * child + 1;
    put_entry(w, first + hole, entry_at(w, first + child));
    hole = child;
  }
  for (int parent = (hole - 1) / 2; hole > top && entry_before(w, entry_at(w, first + parent), moved); parent = (hole - 1) / 2) {
    put_entry(w, first + hole, entry_at(w, first + parent));
    hole = parent;
  }
  put_entry(w, first + hole, moved);
}
/* The largest of a heap goes to a place, and what stood there into the heap. */
static void take_from_heap(const Row *w, int first, int middle, int to) {
  Entry moved = entry_at(w, to);
  put_entry(w, to, entry_at(w, first));
  sift(w, first, 0, middle - first, moved);
}
static void heap_select(const Row *w, int first, int middle, int last) {
  int n = middle - first;
  for (int parent = n / 2 - 1; parent >= 0; parent--) sift(w, first, parent, n, entry_at(w, first + parent));
  for (int i = middle; i < last; i++)
    if (is_before(w, i, first)) take_from_heap(w, first, middle, i);
}
static void partial_sort(const Row *w, int first, int middle, int last) {
  heap_select(w, first, middle, last);
  for (; middle - first > 1; middle--) take_from_heap(w, first, middle - 1, middle - 1);
}
/* The median of three goes to the front; then what comes before it, and from the returned place on what comes after. */
static int partition(const Row *w, int first, int last) {
  int a = first + 1, b = first + (last - first) / 2, c = last - 1;
  if (is_before(w, a, b)) exchange(w, first, is_before(w, b, c) ? b : is_before(w, a, c) ? c : a);
  else exchange(w, first, is_before(w, a, c) ? a : is_before(w, b, c) ? c : b);
  for (int low = first + 1, high = last; ; low++) {
    while (is_before(w, low, first)) low++;
    do high--; while (is_before(w, first, high));
    if (low >= high) return low;
    exchange(w, low, high);
  }
}
static int twice_log2(int n) { int log = 0; while (n > 1) n /= 2, log++; return 2 * log; }
static void nth_element(const Row *w, int nth, int last) {
  int first = 0;
  if (nth >= last) return;
  for (int depth = twice_log2(last); last - first > 3; depth--) {
    if (!depth) {
      heap_select(w, first, nth + 1, last);
      exchange(w, first, nth);
      return;
    }
    int cut = partition(w, first, last);
    if (cut <= nth) first = cut; else last = cut;
  }
  insertion_sort(w, first, last);
}
static void introsort(const Row *w, int first, int last, int depth) {
  while (last - first > 16) {
    if (!depth) { partial_sort(w, first, last, last); return; }
    int cut = partition(w, first, last);
    introsort(w, cut, last, --depth);
    last = cut;
  }
}
/* The first k of a row, in order or as they come. */
static void topk(Vectors x, Vectors places, int n, int k, int descending, int sorted) {
  number_places(places, n);
  for (int l = 0; l < W; l++) {
    Row w = {x, places, l, descending};
    if (k * (int64_t)64 <= n) { partial_sort(&w, 0, k, n); continue; }
    nth_element(&w, k - 1, n);
    if (!sorted) continue;
    introsort(&w, 0, k - 1, twice_log2(k - 1));
    insertion_sort(&w, 0, k - 1);
  }
}
/* Number k of a row, counted from 0, comes to place k; quickselect by the median of three. */
static void kth_value(Vectors x, Vectors places, int n, int k) {
  number_places(places, n);
  for (int l = 0; l < W; l++) {
    Row w = {x, places, l, 0};
    for (int first = 0, last = n - 1; first < last;) {
      if (last == first + 1) {
        if (is_before(&w, last, first)) exchange(&w, first, last);
        break;
      }
      exchange(&w, first + (last - first) / 2, first + 1);
      if (is_before(&w, last, first + 1)) exchange(&w, first + 1, last);
      if (is_before(&w, last, first)) exchange(&w, first, last);
      if (is_before(&w, first, first + 1)) exchange(&w, first + 1, first);
      int low = first + 1, high = last;
      Entry pivot = entry_at(&w, first);
      for (;;) {
        do low++; while (entry_before(&w, entry_at(&w, low), pivot));
        do high--; while (entry_before(&w, pivot, entry_at(&w, high)));
        if (high < low) break;
        exchange(&w, low, high);
      }
      exchange(&w, first, high);
      if (high <= k) first = low;
      if (high >= k) last = high - 1;
    }
  }
}
/* The median comes to place 0: the lower one of two, the first NaN if there is one, unless those are left out. */
static void median(Vectors x, Vectors places, int n, int without_nan) {
  sort(x, places, n, 0);
  for (int l = 0; l < W; l++) {
    Row w = {x, places, l, 0};
    int numbers = n;
    while (numbers > 0 && isnan(entry_at(&w, numbers - 1).x)) numbers--;
    if (numbers < n && !without_nan) put_entry(&w, 0, entry_at(&w, numbers));
    else if (numbers) put_entry(&w, 0, entry_at(&w, (numbers - 1) / 2));
    else nth_element(&w, 0, n);
  }
}
