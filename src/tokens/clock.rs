//! `strftime` as chat templates use it: Python's, in the C locale.

use std::fmt::Write as _;
use std::time::SystemTime;

use time::{OffsetDateTime, UtcOffset};

const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// Formats a moment at an offset of some minutes from UTC; an unknown directive stands as it is.
///
/// As Python's `datetime.now()` it knows no zone: `%z` and `%Z` are empty.
pub fn strftime(now: SystemTime, offset_minutes: i32, format: &str) -> String {
    let seconds = offset_minutes.clamp(-1440, 1440) * 60;
    let offset = UtcOffset::from_whole_seconds(seconds).unwrap_or(UtcOffset::UTC);
    let at = OffsetDateTime::from(now).to_offset(offset);
    let mut out = String::with_capacity(format.len() + 16);
    directives(&at, format, &mut out);
    out
}

fn directives(at: &OffsetDateTime, format: &str, out: &mut String) {
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        match chars.next() {
            // glibc: no padding.
            Some('-') => {
                let start = out.len();
                if let Some(which) = chars.next() {
                    directive(at, which, out);
                }
                let bare = out[start..].trim_start_matches(['0', ' ']);
                let bare = if bare.is_empty() { "0".to_owned() } else { bare.to_owned() };
                out.truncate(start);
                out.push_str(&bare);
            }
            Some(which) => directive(at, which, out),
            None => out.push('%'),
        }
    }
}

fn directive(at: &OffsetDateTime, which: char, out: &mut String) {
    let weekday = usize::from(at.weekday().number_days_from_sunday());
    let month = usize::from(u8::from(at.month())) - 1;
    let hour12 = match at.hour() % 12 {
        0 => 12,
        hour => hour,
    };
    // Writing to a String cannot fail.
    let _ = match which {
        'a' => write!(out, "{}", &DAYS[weekday][..3]),
        'A' => write!(out, "{}", DAYS[weekday]),
        'b' | 'h' => write!(out, "{}", &MONTHS[month][..3]),
        'B' => write!(out, "{}", MONTHS[month]),
        'd' => write!(out, "{:02}", at.day()),
        'e' => write!(out, "{:2}", at.day()),
        'm' => write!(out, "{:02}", month + 1),
        'y' => write!(out, "{:02}", at.year().rem_euclid(100)),
        'Y' => write!(out, "{}", at.year()),
        'H' => write!(out, "{:02}", at.hour()),
        'I' => write!(out, "{hour12:02}"),
        'M' => write!(out, "{:02}", at.minute()),
        'S' => write!(out, "{:02}", at.second()),
        'f' => write!(out, "{:06}", at.microsecond()),
        'p' => write!(out, "{}", if at.hour() < 12 { "AM" } else { "PM" }),
        'j' => write!(out, "{:03}", at.ordinal()),
        'u' => write!(out, "{}", at.weekday().number_from_monday()),
        'w' => write!(out, "{weekday}"),
        'U' => write!(out, "{:02}", at.sunday_based_week()),
        'W' => write!(out, "{:02}", at.monday_based_week()),
        'V' => write!(out, "{:02}", at.iso_week()),
        'G' => write!(out, "{}", at.to_iso_week_date().0),
        'g' => write!(out, "{:02}", at.to_iso_week_date().0.rem_euclid(100)),
        'C' => write!(out, "{:02}", at.year().div_euclid(100)),
        'k' => write!(out, "{:2}", at.hour()),
        'l' => write!(out, "{hour12:2}"),
        'P' => write!(out, "{}", if at.hour() < 12 { "am" } else { "pm" }),
        'n' => writeln!(out),
        't' => write!(out, "\t"),
        '%' => write!(out, "%"),
        'z' | 'Z' => Ok(()),
        'D' | 'x' => return directives(at, "%m/%d/%y", out),
        'F' => return directives(at, "%Y-%m-%d", out),
        'T' | 'X' => return directives(at, "%H:%M:%S", out),
        'R' => return directives(at, "%H:%M", out),
        'r' => return directives(at, "%I:%M:%S %p", out),
        'c' => return directives(at, "%a %b %e %H:%M:%S %Y", out),
        other => write!(out, "%{other}"),
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_date_is_written_as_python_writes_it() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_772_874_303);
        let say = |format| strftime(now, 0, format);
        assert_eq!(say("%d %b %Y"), "07 Mar 2026");
        assert_eq!(say("%Y-%m-%d %H:%M:%S"), "2026-03-07 09:05:03");
        assert_eq!(say("%A, %B %-d, %-I:%M %p %% %j %Q %z|"), "Saturday, March 7, 9:05 AM % 066 %Q |");
        assert_eq!(
            say("%G %g %C %k|%l|%P %r %-k %D %c"),
            "2026 26 20  9| 9|am 09:05:03 AM 9 03/07/26 Sat Mar  7 09:05:03 2026"
        );
        assert_eq!(strftime(now, 900, "%F %a"), "2026-03-08 Sun");
    }
}
