"""Data that others have published, and tensors of them."""

import torch


def doubles(values):
    return torch.tensor(values, dtype=torch.float64)


def from_text(numbers):
    """Numbers that a text has between spaces."""
    return doubles([float(number) for number in numbers.split()])


def normals(seed, *shape):
    """Standard normal numbers that follow from a seed."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def uniforms(seed, *shape):
    """Numbers between 0 and 1 that follow from a seed."""
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def standardised(x):
    x = torch.as_tensor(x, dtype=torch.float64)
    return (x - x.mean(0)) / x.std(0)


# Effects of coaching in eight schools, and their standard errors: Rubin 1981.
SCHOOL_EFFECTS = doubles([28, 8, -3, 7, -1, 1, 18, 12])
SCHOOL_ERRORS = doubles([15, 10, 16, 11, 9, 11, 10, 18])

# Weights of 30 rats at five ages in days: Gelfand et al. 1990, and BUGS examples volume 1, Rats.
RAT_AGES = doubles([8, 15, 22, 29, 36])
RAT_WEIGHTS = doubles(
    [
        *([151, 199, 246, 283, 320], [145, 199, 249, 293, 354], [147, 214, 263, 312, 328]),
        *([155, 200, 237, 272, 297], [135, 188, 230, 280, 323], [159, 210, 252, 298, 331]),
        *([141, 189, 231, 275, 305], [159, 201, 248, 297, 338], [177, 236, 285, 350, 376]),
        *([134, 182, 220, 260, 296], [160, 208, 261, 313, 352], [143, 188, 220, 273, 314]),
        *([154, 200, 244, 289, 325], [171, 221, 270, 326, 358], [163, 216, 242, 281, 312]),
        *([160, 207, 248, 288, 324], [142, 187, 234, 280, 316], [156, 203, 243, 283, 317]),
        *([157, 212, 259, 307, 336], [152, 203, 246, 286, 321], [154, 205, 253, 298, 334]),
        *([139, 190, 225, 267, 302], [146, 191, 229, 272, 302], [157, 211, 250, 285, 323]),
        *([132, 185, 237, 286, 331], [160, 207, 257, 303, 345], [169, 216, 261, 295, 333]),
        *([157, 205, 248, 289, 316], [137, 180, 219, 258, 291], [153, 200, 244, 286, 324]),
    ]
)

# Failures of ten pumps, and thousands of hours that they ran: Gaver & O'Muircheartaigh 1987, BUGS volume 1, Pumps.
PUMP_FAILURES = doubles([5, 1, 5, 14, 3, 19, 1, 1, 4, 22])
PUMP_HOURS = doubles([94.3, 15.7, 62.9, 126, 5.24, 31.4, 1.05, 1.05, 2.1, 10.5])

# Seeds that germinated on 21 plates, of how many, kind of seed and of root: Crowder 1978, BUGS volume 1, Seeds.
SEEDS_GERMINATED = doubles([10, 23, 23, 26, 17, 5, 53, 55, 32, 46, 10, 8, 10, 8, 23, 0, 3, 22, 15, 32, 3])
SEEDS = doubles([39, 62, 81, 51, 39, 6, 74, 72, 51, 79, 13, 16, 30, 28, 45, 4, 12, 41, 30, 51, 7])
SEED_KIND = doubles([0] * 11 + [1] * 10)
SEED_ROOT = doubles([0] * 5 + [1] * 6 + [0] * 5 + [1] * 5)

# Hits of 18 players in their first 45 times at bat: Efron & Morris 1975.
HITS = doubles([18, 17, 16, 15, 14, 14, 13, 12, 11, 11, 10, 10, 10, 10, 10, 9, 8, 7])

# Lengths of 27 dugongs in metres, and their ages in years: Ratkowsky 1983, BUGS volume 2, Dugongs.
DUGONG_AGES = from_text("1 1.5 1.5 1.5 2.5 4 5 5 7 8 8.5 9 9.5 9.5 10 12 12 13 13 14.5 15.5 15.5 16.5 17 22.5 29 31.5")
DUGONG_LENGTHS = from_text(
    "1.8 1.85 1.87 1.77 2.02 2.27 2.15 2.26 2.47 2.19 2.26 2.4 2.39 2.41 2.5 2.32 2.32 2.43 2.47 2.56 2.65 "
    "2.47 2.64 2.56 2.7 2.72 2.57"
)

# Weeks of remission of leukaemia, with 6-mercaptopurine and then without: Freireich et al. 1963, BUGS volume 1, Leuk.
REMISSIONS = doubles(
    [
        *(6, 6, 6, 6, 7, 9, 10, 10, 11, 13, 16, 17, 19, 20, 22, 23, 25, 32, 32, 34, 35),
        *(1, 1, 2, 2, 3, 4, 4, 5, 5, 8, 8, 8, 8, 11, 11, 12, 12, 15, 17, 22, 23),
    ]
)
RELAPSED = doubles([1, 1, 1, 0, 1, 0, 1, 0, 0, 1, 1, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0] + [1] * 21)
TREATED = doubles([1] * 21 + [0] * 21)

# Flow of the Nile at Aswan from 1871 to 1970: Cobb 1978, and Durbin & Koopman 2012.
NILE = from_text(
    "1120 1160 963 1210 1160 1160 813 1230 1370 1140 995 935 1110 994 1020 960 1180 799 958 1140 1100 1210 "
    "1150 1250 1260 1220 1030 1100 774 840 874 694 940 833 701 916 692 1020 1050 969 831 726 456 824 702 1120 "
    "1100 832 764 821 768 845 864 862 698 845 744 796 1040 759 781 865 845 944 984 897 822 1010 771 676 649 "
    "846 812 742 801 1040 860 874 848 890 744 749 838 1050 918 986 797 923 975 815 1020 906 901 1170 912 746 "
    "919 718 714 740"
)

# Marriages between 15 families of Florence in the order of the alphabet, the Medici 8: Padgett & Ansell 1993.
# The family of Pucci, which has none, is left out.
MARRIAGES = [
    *((0, 8), (4, 10), (4, 13), (2, 4), (2, 8), (8, 11), (8, 14), (1, 8), (8, 12), (9, 12)),
    *((10, 13), (3, 10), (11, 13), (3, 13), (11, 14), (6, 14), (1, 5), (1, 6), (3, 6), (6, 7)),
]
