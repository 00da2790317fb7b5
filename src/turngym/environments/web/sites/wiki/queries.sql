-- pages
SELECT page_namespace AS space, replace(page_title, '_', ' ') AS title,
    page_is_redirect AS redirect, t.old_text AS text, a.actor_name AS editor FROM page p JOIN revision r ON r.rev_id = p.page_latest
    JOIN actor a ON a.actor_id = r.rev_actor JOIN slots s ON s.slot_revision_id = p.page_latest
    JOIN content c ON c.content_id = s.slot_content_id
    JOIN text t ON t.old_id = CAST(substr(c.content_address, 4) AS INTEGER) ORDER BY page_id

-- watched
SELECT user_name AS user, wl_namespace AS space, replace(wl_title, '_', ' ') AS title
    FROM watchlist JOIN user ON user_id = wl_user ORDER BY wl_id

-- protected
SELECT page_namespace AS space, replace(page_title, '_', ' ') AS title,
    pr_type AS type, pr_level AS level
    FROM page_restrictions JOIN page ON page_id = pr_page ORDER BY pr_id

-- blocked
SELECT ipb_address AS user, ipb_sitewide AS everywhere, CAST(round(
    julianday(substr(ipb_expiry, 1, 4) || '-' || substr(ipb_expiry, 5, 2) || '-'
        || substr(ipb_expiry, 7, 2) || ' ' || substr(ipb_expiry, 9, 2) || ':'
        || substr(ipb_expiry, 11, 2))
    - julianday(substr(ipb_timestamp, 1, 4) || '-' || substr(ipb_timestamp, 5, 2) || '-'
        || substr(ipb_timestamp, 7, 2) || ' ' || substr(ipb_timestamp, 9, 2) || ':'
        || substr(ipb_timestamp, 11, 2))
    ) AS INTEGER) AS days FROM ipblocks ORDER BY ipb_id

-- users
SELECT user_name AS user, user_real_name AS real_name, user_password AS password
    FROM user ORDER BY user_id

-- groups
SELECT ug_user AS user, ug_group AS name FROM user_groups ORDER BY 1, 2

-- options
SELECT user_name AS user, up_property AS name, up_value AS value
    FROM user_properties JOIN user ON user_id = up_user ORDER BY up_user, up_property
